"""Prints the part of a step's matrix products that cuBLAS computes with slow kernels, because the rows of a matrix are not
aligned to 16 bytes. Plans on a virtual GPU; needs no GPU.

    python bench/matmul_alignment.py build/release/vlmtrain [--model NAME ...] [--kind lora|nf4|int8|full ...] [--rank N ...]

Without --model, all presets. Prints a Markdown table with a row per preset, kind and rank whose part is not zero, and the
number of steps that were planned. Exit code 1 if a part exceeds --at-most.
"""

import argparse
import json
import re
import subprocess
import sys

KINDS = {
    "lora": ["--finetune", "lora"],
    "nf4": ["--finetune", "lora", "--quantization", "nf4"],
    "int8": ["--finetune", "lora", "--quantization", "int8"],
    "full": ["--finetune", "full"],
}


def presets(program):
    text = subprocess.run([program, "init", "--help"], check=True, capture_output=True, text=True).stdout
    return re.search(r"one of ([^\n]*)", text)[1].split(", ")


def plan(program, model, options):
    """Returns a plan with one image or volume per sample, or without media if the model takes none."""
    command = [program, "plan", "--json", "--model", model, "--gpu", "h200", "--global-batch", "2", "--micro-batch", "1",
               "--recompute", "none", "--limit-gb", "1000", *options]
    for media in (["--images", "1"], ["--images", "0", "--volumes", "1"], ["--images", "0"]):
        done = subprocess.run(command + media, capture_output=True, text=True)
        if done.stdout:
            return json.loads(done.stdout)
    raise SystemExit(f"matmul_alignment: {' '.join(command)}: {done.stderr.strip()}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--model", action="append", default=[])
    parser.add_argument("--kind", action="append", default=[], choices=list(KINDS))
    parser.add_argument("--rank", action="append", default=[], type=int, help="rank of the adapters [16]")
    parser.add_argument("--at-most", type=float, default=1, metavar="PART", help="maximum part of the operations [1]")
    arguments = parser.parse_args()
    planned, largest = 0, 0.0
    print("| preset | kind | rank | misaligned, % of the products' operations |\n|---|---|---|---|")
    for model in arguments.model or presets(arguments.program):
        for kind in arguments.kind or KINDS:
            for rank in arguments.rank or [16]:
                if kind == "full" and rank != (arguments.rank or [16])[0]:
                    continue
                options = KINDS[kind] + ([] if kind == "full" else [f"lora.rank={rank}"])
                cost = plan(arguments.program, model, options)["dry_run_step_cost"]
                part = cost["misaligned_matmul_operations"] / cost["matmul_operations"]
                planned += 1
                largest = max(largest, part)
                if part > 0:
                    print(f"| {model} | {kind} | {'' if kind == 'full' else rank} | {100 * part:.3g} |", flush=True)
    print(f"\n{planned} steps were planned.")
    return 1 if largest > arguments.at_most else 0


if __name__ == "__main__":
    sys.exit(main())
