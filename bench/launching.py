"""Compares the host's time for a step's launches with the GPU's time for their kernels, as a Markdown table.

    python bench/launching.py --build build/release

Each model is planned for LoRA and for full training on a GPU of 24 GB and one of 80 GB, with the micro-batch size that
the planner chooses and with one sample. A step's launches are counted on the virtual GPU; each costs the host
--microseconds. The GPU's time is the plan's, in which an operation takes at least 4 µs a launch. No GPU is used. One
process runs at a time, on one thread; all take three minutes. docs/benchmarks/launching.md explains the microseconds
and the results.
"""

import argparse
from pathlib import Path

from kernel_gains import FULL, LORA, plan_arguments, make_plan

MODELS = [
    "smolvlm-256m", "nanovlm-222m", "internvl3-1b", "qwen3-vl-2b", "smolvlm2-2.2b", "gemma-3-4b", "llava-1.5-7b",
    "qwen2.5-vl-7b",
]  # fmt: skip
KINDS = {"LoRA": LORA, "full": FULL}
GPUS = {"rtx4090": "RTX 4090", "h100": "H100"}


def count_launches(plan, build, arguments):
    """Returns the launches of a whole step. A plan counts those of the update and of at most two micro-batches."""
    passes, num_launches = plan["gradient_accumulation_steps"], plan["dry_run_step_cost"]["launches"]
    if passes > 2:
        one = [*arguments, *plan_arguments(plan), "--global-batch", str(plan["micro_batch_size"])]
        num_launches += (passes - 2) * (num_launches - make_plan(build, one)["dry_run_step_cost"]["launches"])
    return int(num_launches)


def row(model, kind, gpu, micro_batch, options):
    """Returns a row of the table; None if the plan does not fit."""
    arguments = ["--model", model, "--gpu", gpu, *KINDS[kind]]
    if micro_batch:
        arguments += ["--micro-batch", str(micro_batch)]
    plan = make_plan(options.build, arguments)
    if not plan["fits"]:
        return None
    launches, device = count_launches(plan, options.build, arguments), plan["step_seconds"]
    host = launches * options.microseconds * 1e-6
    return [
        model, kind, GPUS[gpu], f"{plan['micro_batch_size']} × {plan['gradient_accumulation_steps']}",
        "yes" if any(plan["recompute"].values()) else "no", f"{plan['tokens_per_sample']:,}", f"{launches:,}",
        f"{host:.3f}", f"{device:.3f}", ("**{:.2f}**" if host > device else "{:.2f}").format(host / device),
    ]  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=lambda path: Path(path).resolve(), required=True, help="folder with vlmtrain")
    parser.add_argument("--microseconds", type=float, default=7, help="host time of a launch, in microseconds [7]")
    parser.add_argument("--model", action="append", help="name of a preset; can be repeated")
    options = parser.parse_args()
    titles = ["model", "training", "GPU", "micro-batch × passes", "recomputed", "tokens a sample", "launches a step",
              "host, s", "GPU, s", "host / GPU"]  # fmt: skip
    print(f"| {' | '.join(titles)} |\n{'|---' * len(titles)}|")
    for model in options.model or MODELS:
        for kind in KINDS:
            for gpu in GPUS:
                rows = [row(model, kind, gpu, micro_batch, options) for micro_batch in (None, 1)]
                for each in rows if rows[0] != rows[1] else rows[:1]:
                    if each:
                        print(f"| {' | '.join(each)} |", flush=True)


if __name__ == "__main__":
    main()
