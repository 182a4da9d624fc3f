"""Prints how much each fused kernel adds to the predicted tokens per second of five plans, as a Markdown table.

    python bench/kernel_gains.py --build build/release

Each plan is made with all fused kernels. Its micro-batch size, recomputation, tiles per forward pass and loss chunks are
then fixed, and it is made again without any fused kernel, without one of them, and with only one. No GPU is used. One
process runs at a time, on one thread; all take two minutes. docs/benchmarks/own-kernels.md has the results.
"""

import argparse
import re
from dataclasses import dataclass
from pathlib import Path

from compare_transformers import run

SOURCES = Path(__file__).resolve().parent.parent / "src" / "kernels"
LORA, FULL = ["--finetune", "lora"], ["--finetune", "full"]
NF4 = [*LORA, "--quantization", "nf4"]


@dataclass(frozen=True)
class Case:
    title: str
    model: str
    gigabytes: int
    kind: list


CASES = [
    Case("llava-1.5-7b, 24 GB, LoRA", "llava-1.5-7b", 24, LORA),
    Case("llava-1.5-7b, 8 GB, LoRA on NF4", "llava-1.5-7b", 8, NF4),
    Case("qwen2.5-vl-7b, 80 GB, LoRA", "qwen2.5-vl-7b", 80, LORA),
    Case("gemma-3-4b, 80 GB, full", "gemma-3-4b", 80, FULL),
    Case("qwen3-vl-4b, 24 GB, LoRA on NF4", "qwen3-vl-4b", 24, NF4),
]


def kernel_names():
    """Returns the kernels in the order of `Kernel`."""
    return re.findall(r'Named\{Kernel::\w+, "(\w+)"\}', (SOURCES / "kernels.cpp").read_text(encoding="utf-8"))


def blocks(recompute):
    """Returns a plan's recomputation as a value of --recompute."""
    return "{vision_blocks}+{language_blocks}/{language_attention_kept}".format(**recompute)


def plan_arguments(plan):
    """Returns arguments that fix every choice of the plan."""
    return [
        "--micro-batch", str(plan["micro_batch_size"]), "--recompute", blocks(plan["recompute"]),
        f"memory.vision_tiles_per_pass={plan['vision_tiles_per_pass']}",
        f"memory.loss_chunk_rows={plan['loss_chunk_rows']}",
    ]  # fmt: skip


def make_plan(build, arguments, without=()):
    """Returns the plan as JSON, without some fused kernels. A plan that does not fit reports its memory too."""
    environment = {"VLMTRAIN_PAST_RUNS": "off", "VLMTRAIN_WITHOUT_KERNELS": ",".join(without)}
    return run([str(build / "vlmtrain"), "plan", "--json", *arguments], environment)


@dataclass
class Gains:
    case: Case
    own: float  # tokens a second
    aten: float
    lost: dict  # by kernel: all except this one
    gained: dict  # by kernel: only this one


def compute_gains(case, build, kernels):
    arguments = ["--model", case.model, "--gpu-gb", str(case.gigabytes), *case.kind, "--images", "2"]
    selection = make_plan(build, arguments)
    fixed_arguments = [*arguments, *plan_arguments(selection)]

    def speed(without):
        return make_plan(build, fixed_arguments, without)["tokens_per_second"]

    own, aten = speed(()), speed(kernels)
    if abs(own / selection["tokens_per_second"] - 1) > 1e-6:
        raise SystemExit(f"{case.title}: the plan predicts a different speed when its choices are fixed")
    lost = {kernel: own - speed([kernel]) for kernel in kernels}
    gained = {kernel: speed([other for other in kernels if other != kernel]) - aten for kernel in kernels}
    return Gains(case, own, aten, lost, gained)


def cell(lost, gained):
    return "" if round(lost) == round(gained) == 0 else f"{round(lost):,} / {round(gained):,}"


def table(rows, kernels):
    used = [kernel for kernel in kernels if any(cell(row.lost[kernel], row.gained[kernel]) for row in rows)]
    print(f"| plan | ATen | {' | '.join(used)} | own | |\n{'|---' * (len(used) + 4)}|")
    for row in rows:
        cells = " | ".join(cell(row.lost[kernel], row.gained[kernel]) for kernel in used)
        print(f"| {row.case.title} | {row.aten:,.0f} | {cells} | {row.own:,.0f} | {row.own / row.aten - 1:+.0%} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=lambda path: Path(path).resolve(), required=True, help="folder with vlmtrain")
    build = parser.parse_args().build
    kernels = kernel_names()
    table([compute_gains(case, build, kernels) for case in CASES], kernels)


if __name__ == "__main__":
    main()
