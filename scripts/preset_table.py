#!/usr/bin/env python3
"""Prints plans for every preset on the usual GPU sizes as a Markdown table (docs/planner.md).

    python3 scripts/preset_table.py build/release/vlmtrain [further flags of plan, such as --images 1]

A cell is micro-batch × accumulation for a global batch of 16; if nothing fits, the minimum memory of the job in GB.
"""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

PRESETS = ["nanovlm-222m", "smolvlm-256m", "smolvlm2-256m-video", "nanovlm-460m", "smolvlm-500m", "smolvlm2-500m-video",
           "internvl3-1b", "internvl3.5-1b", "internvl3-2b", "qwen3-vl-2b", "qwen2-vl-2b", "smolvlm-2.2b", "smolvlm2-2.2b",
           "internvl3.5-2b", "qwen2.5-vl-3b", "gemma-3-4b", "medgemma-4b", "qwen3-vl-4b", "internvl3.5-4b", "llava-1.5-7b",
           "llava-med-7b", "internvl3-8b", "qwen2.5-vl-7b", "internvl3.5-8b", "qwen3-vl-8b", "gemma-3-12b", "llava-1.5-13b",
           "internvl3-14b", "internvl3.5-14b", "gemma-3-27b", "qwen3-vl-32b", "internvl3-38b", "internvl3.5-38b"]
GPUS = [8, 12, 16, 24, 40, 48, 80, 141]
TRAINING = {"full": ["--finetune", "full"], "LoRA": ["--finetune", "lora"],
            "LoRA on NF4": ["--finetune", "lora", "--quantization", "nf4"]}


def cell(vlmtrain, flags):
    run = subprocess.run([vlmtrain, "plan", "--json", *flags], capture_output=True, text=True)
    if run.returncode not in (0, 3):
        sys.exit(f"{' '.join(flags)}: {run.stderr}")
    answer = json.loads(run.stdout)
    if answer["fits"]:
        return f"{answer['micro_batch_size']} × {answer['gradient_accumulation_steps']}"
    return f"*{answer['memory']['total_bytes'] / 1e9:.0f}*"


def main():
    vlmtrain, flags = sys.argv[1], sys.argv[2:]
    print("| preset | training | " + " | ".join(f"{gpu} GB" for gpu in GPUS) + " |")
    print("|---" * (len(GPUS) + 2) + "|")
    with ThreadPoolExecutor(2) as workers:
        for preset in PRESETS:
            for training, own in TRAINING.items():
                jobs = [["--model", preset, "--gpu-gb", str(gpu), *own, *flags] for gpu in GPUS]
                cells = workers.map(lambda job: cell(vlmtrain, job), jobs)
                print(f"| {preset} | {training} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
