"""Plans presets on GPUs of several sizes and prints the predicted tokens per second as a Markdown table.

    python bench/plan_table.py --vlmtrain build/release/vlmtrain qwen3.5-0.8b qwen3.5-2b

Each cell is a plan with default settings for samples of one image of --image-size pixels. A dash means that the job does not
fit. No GPU is used. A cell takes some seconds, longer if the job does not fit.
"""

import argparse
import sys

from planning import describe_speed, plan

METHODS = {
    "full": ["--finetune", "full"],
    "LoRA": ["--finetune", "lora"],
    "LoRA on NF4": ["--finetune", "lora", "--quantization", "nf4"],
}
GPU_GIGABYTES = [8, 16, 24, 48, 80, 141]
GLOBAL_BATCH = 16


def plan_preset(arguments, preset, method, gigabytes):
    return plan(arguments.vlmtrain, [
        "--model", preset, *METHODS[method], "--gpu-gb", str(gigabytes), "--images", "1",
        "--image-size", str(arguments.image_size), "--text-tokens", str(arguments.text_tokens),
        "--answer-tokens", str(arguments.text_tokens // 2), "--global-batch", str(GLOBAL_BATCH),
    ])  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("presets", nargs="+", metavar="PRESET")
    parser.add_argument("--vlmtrain", required=True, help="the program")
    parser.add_argument("--image-size", type=int, default=768, help="side of the image, in pixels")
    parser.add_argument("--text-tokens", type=int, default=448, help="text tokens per sample; half are label tokens")
    arguments = parser.parse_args()
    print("| preset | method | " + " | ".join(f"{size} GB" for size in GPU_GIGABYTES) + " |")
    print("|---" * (len(GPU_GIGABYTES) + 2) + "|")
    for preset in arguments.presets:
        for method in METHODS:
            cells = [describe_speed(plan_preset(arguments, preset, method, size)) for size in GPU_GIGABYTES]
            print(f"| {preset} | {method} | " + " | ".join(cells) + " |")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
