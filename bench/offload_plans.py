"""Plans full fine-tuning and LoRA with memory.offload=auto and memory.offload_activations=auto, and prints what is in host memory and the predicted tokens per second
as a Markdown table.

    python bench/offload_plans.py --vlmtrain build/release/vlmtrain

Samples have one image and about 1,400 tokens. Global batches of 12, 24 and 96 have about 16, 32 and 128 thousand tokens. A dash means that
the job does not fit. No GPU is used; a cell takes some seconds to minutes.
"""

import argparse
import sys

from planning import describe_speed, plan

FULL, LORA = ["--finetune", "full"], ["--finetune", "lora"]
EIGHT_BITS, STOCHASTIC = ["--optimizer-states", "8bit"], ["training.master_weights=stochastic"]
# Preset, its description, arguments, GPU in GB, host memory in GB.
JOBS = [
    ("qwen2.5-vl-7b", "full, 8-bit states, stochastic", [*FULL, *EIGHT_BITS, *STOCHASTIC], "80", 128),
    ("qwen2.5-vl-7b", "full, 8-bit states", [*FULL, *EIGHT_BITS], "80", 128),
    ("qwen2.5-vl-7b", "full", FULL, "80", 256),
    ("qwen2.5-vl-7b", "full", FULL, "48", 256),
    ("qwen2.5-vl-7b", "full", FULL, "24", 256),
    ("llava-1.5-7b", "full", FULL, "80", 256),
    ("llava-1.5-7b", "full", FULL, "48", 256),
    ("llava-1.5-7b", "full", FULL, "24", 256),
    ("qwen3-vl-32b", "LoRA", LORA, "24", 96),
]
GLOBAL_BATCHES = {12: "16k", 24: "32k", 96: "128k"}  # with the approximate number of tokens
SAMPLE = ["--images", "1", "--image-size", "768", "--text-tokens", "680", "--answer-tokens", "340"]


def plan_job(vlmtrain, preset, arguments, gpu, host, global_batch):
    return plan(vlmtrain, [
        "--model", preset, *arguments, "--gpu-gb", gpu, "--host-memory-gb", str(host), *SAMPLE,
        "--global-batch", str(global_batch), "memory.offload=auto", "memory.offload_activations=auto",
    ])  # fmt: skip


def describe_offload(entry):
    return entry["offload"] + (" + inputs" if entry["offload_activations"] else "")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vlmtrain", required=True, help="path of the program")
    arguments = parser.parse_args()
    print("| preset | method | GPU | offload | GPU GB | host GB | " + " | ".join(GLOBAL_BATCHES.values()) + " |")
    print("|---" * (6 + len(GLOBAL_BATCHES)) + "|")
    for preset, method, flags, gpu, host in JOBS:
        plans = [plan_job(arguments.vlmtrain, preset, flags, gpu, host, batch) for batch in GLOBAL_BATCHES]
        memory = plans[-1]["memory"]
        speeds = [describe_speed(entry) for entry in plans]
        offloads = ", ".join(dict.fromkeys(describe_offload(entry) for entry in plans))
        print(f"| {preset} | {method} | {gpu} | {offloads} | {memory['total_bytes'] / 1e9:.1f} | {memory['host_bytes'] / 1e9:.1f} | "
              + " | ".join(speeds) + " |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
