"""One step of Qwen2.5-VL-3B with LoRA by kernel name and grid: measured parts next to those inferred from class totals."""

import gzip
import json
import shutil
import sys

from harness import inputs
from harness import results
from harness.bench import RunFailed
from harness.check import Check
from checks.planned_job import Job, plan_arguments, measure_seconds

sys.path.insert(0, str(inputs.ROOT / "bench"))

import step_parts  # noqa: E402

PRESET, DRY_PRESET = "qwen2.5-vl-3b", "qwen2.5-vl-tiny"
RANK, GLOBAL_BATCH, IMAGES, WORDS, STEPS = 16, 16, 2, 100, 5
# The first that fits is used: 8 takes 113 GB, which fits an H200 but not an H100.
MICRO_BATCHES = (8, 4, 2)
LIBRARY = "libvlmtrain_kernel_times.so"
LORA = {"lora.rank": RANK, "memory.recompute": "none", "training.max_steps": STEPS}
# Milliseconds on an H200 with micro-batches of 8, inferred in November 2026 from the class totals of
# docs/benchmarks/first-gpu-hour.md (at commit 32d5921e) by operations and sizes. SwiGLU of the tower was 178 before it was read in packs of 8 bytes.
INFERRED_LORA = {step_parts.BASE: 890, step_parts.LORA: 241, step_parts.NARROW_BASE: 309, step_parts.NARROW_LORA: 161,
                 step_parts.TEXT_ATTENTION: 165, step_parts.FULL_ATTENTION: 176, step_parts.WINDOWS: 132, step_parts.TOWER_GATE: 85}
# For NF4, only totals of classes are measured.
CLASSES = {"products, aligned": (step_parts.BASE, step_parts.LORA),
           "products, misaligned": (step_parts.NARROW_BASE, step_parts.NARROW_LORA),
           "attention": (step_parts.TEXT_ATTENTION, step_parts.FULL_ATTENTION, step_parts.WINDOWS, step_parts.OTHER_ATTENTION)}
FIRST_CLASSES = {"LoRA": {"products, aligned": 1133, "products, misaligned": 470, "attention": 469},
                 "LoRA on NF4": {"products, aligned": 924, "products, misaligned": 1027, "attention": 459}}
# Minimum share of products of known size for a meaningful split.
LEAST_MATCHED = 0.9
SHOWN_SIZES = 25
VIRTUAL_NAMES = {"H200": "h200", "H100 PCIe": "h100-pcie", "H100": "h100", "B200": "b200", "A100": "a100-80"}
FIX = "bench/step_parts.py: the attached recording and record have the kernels in order"


def virtual_name(gpu):
    """Returns the virtual GPU that corresponds to the GPU name of a plan; None if no virtual GPU does."""
    return next((name for word, name in VIRTUAL_NAMES.items() if word in gpu), None)


def make_job(bench, overrides):
    if bench.is_virtual:
        return Job(DRY_PRESET, {**LORA, **overrides}, images=IMAGES, words=WORDS, global_batch=GLOBAL_BATCH)
    return Job(PRESET, {**LORA, **overrides}, images=IMAGES, words=WORDS, global_batch=GLOBAL_BATCH,
               model=bench.checkpoint(PRESET, dtype="bfloat16"))


def record_launches(bench, job, name, plan, device):
    """Runs the job on a virtual GPU with the choices of a plan. Returns the record's path."""
    path = bench.work / f"step-kernels-{name}-record.txt"
    path.unlink(missing_ok=True)
    folder = bench.work / "truth" / f"step-kernels-{name}-record"
    inputs.clear(folder)
    settings = {**job.settings(bench), **plan_arguments(plan), "training.max_steps": 3}
    bench.train(folder, device, settings, environment={"VLMTRAIN_VGPU_TRACE": str(path)})
    return path


def imitate_recording(record, path):
    """Writes a recording of a GPU that runs a virtual GPU's record twice: products as one kernel each, each kernel in a microsecond."""
    update = next(item for item in reversed(record) if isinstance(item, step_parts.Launch))
    numbers, lines = {}, []
    for place, item in enumerate([update, *record, *record]):
        name, grid = (item.name, item.grid) if isinstance(item, step_parts.Launch) else ("nvjet_hsh_128x128_64x6_1x2_h_bz_TNT", (132, 1, 1))
        if name not in numbers:
            numbers[name] = len(numbers)
            lines.append(f"N {numbers[name]} {name}")
        lines.append(f"K {numbers[name]} {2000 * place} {2000 * place + 1000} {' '.join(map(str, grid))} 128 1 1")
    path.write_text("\n".join(lines) + "\n")


def run_recorded(bench, job, name):
    """Runs the job at the largest micro-batch that fits. Returns the run and the path of its recording."""
    library = bench.portable / LIBRARY
    if not library.exists():
        raise FileNotFoundError(f"{library} does not exist; build the target kernel_times")
    times = bench.work / f"step-kernels-{name}-times.txt"
    environment = {"CUDA_INJECTION64_PATH": str(library), "VLMTRAIN_KERNEL_TIMES": str(times)}
    for micro_batch in MICRO_BATCHES:
        run, ended, _ = job.run(bench, f"step-kernels-{name}", {"training.micro_batch_size": micro_batch}, environment, expected=(0, 3))
        if ended.code == 0:
            return run, times
    raise RunFailed(f"{PRESET} at a micro-batch of {MICRO_BATCHES[-1]}", ended)


def attach(bench, path, name):
    with open(path, "rb") as source, gzip.open(bench.attach(name), "wb") as target:
        shutil.copyfileobj(source, target)


def compute_figures(summary, wall, inferred):
    parts = {part: {**line, "inferred_ms": inferred.get(part)} for part, line in summary["parts"].items()}
    return {"step_ms": wall / 1e6, "busy_ms": sum(line["ms"] for line in parts.values()), "parts": parts,
            "products": summary["products"][:SHOWN_SIZES], "products_matched": summary["products_matched"],
            "products_launched": summary["products_launched"]}


def class_totals(title, parts):
    return {name: {"ms": sum(parts[part]["ms"] for part in members if part in parts), "first_h200_ms": FIRST_CLASSES[title][name]}
            for name, members in CLASSES.items()}


def describe(figures, inferred):
    parts = ", ".join(f"{part} {figures['parts'][part]['ms']:.0f}" + (f" ({ms} inferred)" if (ms := inferred.get(part)) else "")
                      for part in figures["parts"] if figures["parts"][part]["ms"] >= 1)
    return (f"{figures['step_ms']:.0f} ms a step, {figures['busy_ms']:.0f} in kernels: {parts}; "
            f"{figures['products_matched']} of {figures['products_launched']} products by size")


def dry_run(bench, job, name, shapes):
    """Runs the tiny model on the virtual GPU, and the parser on a recording made of its record."""
    run, _, _ = job.run(bench, f"step-kernels-{name}", {"training.micro_batch_size": MICRO_BATCHES[0]})
    record = step_parts.read_record(record_launches(bench, job, name, run.plan(), bench.device))
    times = bench.work / f"step-kernels-{name}-times.txt"
    imitate_recording(record, times)
    launches, wall = step_parts.read_times(times)
    figures = compute_figures(step_parts.summarize(launches, record, shapes), wall, {})
    expected = [step_parts.BASE, step_parts.LORA, step_parts.TEXT_ATTENTION, step_parts.FULL_ATTENTION, step_parts.WINDOWS,
                step_parts.TOWER_GATE]
    missing = [part for part in expected if part not in figures["parts"]]
    if missing or figures["products_matched"] != figures["products_launched"] or len(launches) != len(record):
        return results.failed(f"{describe(figures, {})}; missing: {', '.join(missing) or 'nothing'}", FIX, **figures)
    return results.dry(f"{len(launches)} kernels of {DRY_PRESET}, all {figures['products_launched']} products by size, "
                       f"{len(figures['parts'])} parts; CUPTI and times need a GPU")


def split_step(title, overrides, inferred):
    name = title.replace(" ", "-").lower()

    def do(bench):
        if bench.is_cpu:
            return results.skipped("kernels of a GPU; --dry uses a virtual one")
        job = make_job(bench, overrides)
        config = json.loads((job.settings(bench)["model.path"] / "config.json").read_text())
        if bench.is_virtual:
            return dry_run(bench, job, name, step_parts.Shapes.of(config, RANK, MICRO_BATCHES[0] * IMAGES))
        run, times = run_recorded(bench, job, name)
        attach(bench, times, f"step-kernels-{name}-times.txt.gz")
        plan = run.plan()
        launches, wall = step_parts.read_times(times)
        record, device = None, virtual_name(plan["gpu"])
        if device:
            path = record_launches(bench, job, name, plan, f"virtual:{device}")
            attach(bench, path, f"step-kernels-{name}-record.txt.gz")
            record = step_parts.read_record(path)
        shapes = step_parts.Shapes.of(config, RANK, plan["micro_batch_size"] * IMAGES)
        figures = compute_figures(step_parts.summarize(launches, record, shapes), wall, inferred)
        figures.update(micro_batch=plan["micro_batch_size"], tokens=run.lines()[-1]["tokens"],
                       metrics_step_ms=1e3 * measure_seconds(run.lines()), classes=class_totals(title, figures["parts"]))
        text = f"micro-batches of {plan['micro_batch_size']}, {figures['tokens']} tokens; {describe(figures, inferred)}"
        if figures["products_matched"] < LEAST_MATCHED * figures["products_launched"]:
            return results.failed(text + ("" if device else f"; no virtual GPU is like {plan['gpu']}"), FIX, **figures)
        return results.measured(text, **figures)

    return do


def checks(_):
    return [Check("qwen2.5-vl-3b, LoRA 16: a step by kernel", 80, split_step("LoRA", {}, INFERRED_LORA)),
            Check("qwen2.5-vl-3b, LoRA 16 on NF4: a step by kernel", 60, split_step("LoRA on NF4", {"model.quantization": "nf4"}, {}))]
