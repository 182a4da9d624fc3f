#!/usr/bin/env python3
"""Prints plans for the usual GPU sizes and the values of a rule of thumb as a Markdown table (docs/planner.md).

    python3 scripts/plan_table.py build/release/vlmtrain [further flags of plan, such as --model smolvlm-2.2b]
"""

import json
import subprocess
import sys

GLOBAL_BATCH = 16


def rule_of_thumb(gigabytes, images):
    """Returns the micro-batch size of a rule of thumb: 0.8 GB per sample with one image, 70 % more for each further image,
    a fifth of the GPU free, weights ignored."""
    return min(GLOBAL_BATCH, int(0.8 * gigabytes / (0.8 * (1 + 0.7 * (images - 1)))))


def plan(vlmtrain, flags, gigabytes, images):
    command = [vlmtrain, "plan", "--json", "--gpu-gb", str(gigabytes), "--images", str(images), *flags]
    return json.loads(subprocess.run(command, capture_output=True, text=True).stdout)


def words(answer):
    if not answer["fits"]:
        return f"does not fit: {answer['memory']['total_bytes'] / 1e9:.1f} GB"
    recompute, blocks = answer["recompute"], answer["blocks"]
    again = ", ".join(f"{part} {recompute[key]} of {blocks[key]}"
                      for part, key in (("vision", "vision_blocks"), ("language", "language_blocks")) if recompute[key])
    return (f"{answer['micro_batch_size']} × {answer['gradient_accumulation_steps']}, "
            f"{answer['memory']['total_bytes'] / 1e9:.1f} GB{'; ' + again if again else ''}")


def main():
    vlmtrain, flags = sys.argv[1], sys.argv[2:]
    print("| --gpu-gb | images | plan: micro-batch × accumulation, GB in all; blocks recomputed | predicted step, s | "
          "planned in, s | rule of thumb |")
    print("|---|---|---|---|---|---|")
    for gigabytes in (8, 16, 24, 40, 80):
        for images in (1, 2, 3, 4):
            answer = plan(vlmtrain, flags, gigabytes, images)
            thumb = rule_of_thumb(gigabytes, images)
            step = f"{answer['step_seconds']:.2f}" if answer["fits"] else "-"
            print(f"| {gigabytes} | {images} | {words(answer)} | {step} | {answer['plan_seconds']:.2f} | "
                  f"{thumb} × {GLOBAL_BATCH // thumb if thumb else '-'} |", flush=True)


if __name__ == "__main__":
    main()
