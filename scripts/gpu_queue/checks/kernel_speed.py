"""Custom kernels one by one: GB/s next to a copy by ATen in the same run, against those of the first H200."""

from harness import results
from harness.bench import RunFailed
from harness.check import Check

PROGRAM = "kernel_speed"
SOURCE = "scripts/gpu_queue/checks/kernel_speed.py"
# Megabytes, GB/s and share of the copy's GB/s on the first H200, November 2026 (docs/benchmarks/first-gpu-hour.md at commit 32d5921e).
FIRST_H200 = {
    "gated_activation": (640, 4123, 1.00), "gated_activation, backwards": (1067, 4033, 0.97), "rope": (854, 4039, 0.98), "qk_norm_rope": (761, 2716, 0.66),
    "qk_norm_rope, backwards": (1223, 1349, 0.33), "RMSNorm": (646, 3505, 0.85), "RMSNorm and residual": (969, 3759, 0.91),
    "RMSNorm, backwards, and the stream's": (1292, 4431, 1.07), "LayerNorm": (646, 3139, 0.76), "LayerNorm and residual": (969, 3593, 0.87),
    "LayerNorm, backwards, and the stream's": (1292, 4431, 1.07), "cross_entropy": (623, 2693, 0.65),
    "cross_entropy and gradient": (1246, 2566, 0.62), "adamw, fp32": (3000, 3949, 0.95),
    "adamw, bf16": (2200, 3964, 0.96), "adamw, 8 bits": (1800, 2566, 0.62), "nf4": (170, 3199, 0.77),
    "int8": (204, 3508, 0.85), "activation, GELU": (427, 2015, 0.49), "activation, GELU, backwards": (640, 2576, 0.62),
    "dropout": (646, 2359, 0.57), "dropout, backwards": (969, 2987, 0.72), "patchify": (260, 865, 0.21),
    # Not measured separately: the tower's SwiGLU moved 308 GB in 178 ms of a step of Qwen2.5-VL-3B, forward and backward together.
    "gated_activation, 3420 features": (925, 1730, 0.42), "gated_activation, 3420 features, backwards": (1541, 1730, 0.42),
}
# Kernels that have changed since the first H200.
CHANGED = ("gated_activation, 3420 features", "gated_activation, 3420 features, backwards", "qk_norm_rope, backwards", "RMSNorm", "RMSNorm and residual",
           "RMSNorm, backwards, and the stream's", "LayerNorm", "LayerNorm and residual", "LayerNorm, backwards, and the stream's")
# A kernel below this fraction of its earlier share of the copy counts as slower. Two runs of the first H200 differed by 0.97 to 1.03.
SLOWER = 0.85


def virtual_environment(bench):
    """Returns the variables that put a program on the virtual GPU (docs/explanation/virtual-gpu.md)."""
    folder = bench.portable.resolve() / "vgpu"
    names = ("libcuda.so.1", "libcudart.so.13", "libcublasLt.so.13", "libcublas.so.13", "libnvidia-ml.so.1")
    return {"LD_PRELOAD": ":".join(str(folder / name) for name in names), "VLMTRAIN_VGPU_NAME": bench.device.partition(":")[2]}


def read_table(text):
    """Returns megabytes, GB/s and share of the copy's GB/s by kernel."""
    rows = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and len(cells) == 5 and cells[0] != "kernel":
            rows[cells[0]] = {"megabytes": int(cells[1]), "gigabytes_per_second": float(cells[3]), "of_copy": float(cells[4])}
    return rows


def different_work(rows):
    """Returns the kernels that the program lacks, and those whose bytes differ from the first H200's."""
    return [name for name, (megabytes, _, _) in FIRST_H200.items() if name not in rows or rows[name]["megabytes"] != megabytes]


def compare(rows):
    """Returns each kernel's figures with those of the first H200."""
    figures = {name: dict(row) for name, row in rows.items()}
    for name in FIRST_H200.keys() & rows.keys():
        _, speed, share = FIRST_H200[name]
        figures[name].update(changed=name in CHANGED, first_h200_gigabytes_per_second=speed, first_h200_of_copy=share)
    return figures


def measure(bench):
    program = bench.portable / PROGRAM
    if bench.is_cpu:
        return results.skipped("custom kernels run on a GPU only; --dry uses a virtual one")
    if not program.exists():
        text = f"{program} does not exist; build the target {PROGRAM}, or run scripts/gpu_queue.sh pack"
        return results.skipped(text) if bench.is_virtual else results.failed(text, "scripts/gpu_queue/pack.py")
    if bench.is_virtual:
        ended = bench.run_program([program], virtual_environment(bench))
    else:
        ended = bench.run_program([program, "cuda:0" if bench.device == "cuda" else bench.device])
    if ended.code != 0:
        raise RunFailed(PROGRAM, ended)
    rows = read_table(ended.out)
    wrong = [line for line in ended.out.splitlines() if line.startswith("wrong: ")]
    figures = {"kernels": compare(rows)}
    if wrong or (different := different_work(rows)):
        text = "; ".join(wrong) or f"other work than on the first H200: {', '.join(different)}"
        return results.failed(text, "bench/kernel_speed.cpp and the table in scripts/gpu_queue/checks/kernel_speed.py", **figures)
    if bench.is_virtual:
        return results.dry(f"{len(rows) - 1} kernels go through, with the bytes of the first H200; no times on a virtual GPU")
    bench.attach("kernel_speed.txt").write_text(ended.out)
    slower = [name for name in FIRST_H200 if rows[name]["of_copy"] < SLOWER * FIRST_H200[name][2]]
    text = (f"copy {rows['copy']['gigabytes_per_second']:.0f} GB/s; of a copy's, now and on the first H200: "
            + ", ".join(f"{name} {rows[name]['of_copy']:.2f} ({FIRST_H200[name][2]:.2f})" for name in CHANGED))
    if slower:
        return results.failed(f"{text}; slower than on the first H200: {', '.join(slower)}",
                              f"src/kernels/cuda, and the figures of {SOURCE}", **figures)
    return results.passed(text, **figures)


def checks(_):
    return [Check("custom kernels next to a copy", 30, measure)]
