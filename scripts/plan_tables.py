#!/usr/bin/env python3
"""Prints plans as Markdown tables (docs/explanation/planning.md). All further flags go to `vlmtrain plan`.

    plan_tables.py gpus VLMTRAIN           usual GPU sizes and numbers of images, next to a rule of thumb
    plan_tables.py presets VLMTRAIN        every preset on the usual GPU sizes: micro-batch × accumulation for a global batch of 16;
                                           if nothing fits, the minimum memory of the job in GB
    plan_tables.py frames VLMTRAIN [--frames 8,16] [--gpus 8,24]
                                           a column per row of `plan --compare`; then for each GPU size the plan in 16 bits only,
                                           and the first saving that fits
    plan_tables.py ranks VLMTRAIN [--ranks 1,2,4,8,16] [--shardings none,optimizer,full,hybrid]
                                           with --shardings one column each. From 16 ranks on, the table also has plans for two
                                           machines; only there `hybrid` differs from `full`
"""

import argparse
import json
import subprocess
from concurrent.futures import ThreadPoolExecutor

GLOBAL_BATCH = 16
PRESETS = ["nanovlm-222m", "smolvlm-256m", "smolvlm2-256m-video", "nanovlm-460m", "smolvlm-500m", "smolvlm2-500m-video",
           "internvl3-1b", "internvl3.5-1b", "internvl3-2b", "qwen3-vl-2b", "qwen2-vl-2b", "smolvlm-2.2b", "smolvlm2-2.2b",
           "internvl3.5-2b", "qwen2.5-vl-3b", "gemma-3-4b", "medgemma-4b", "qwen3-vl-4b", "internvl3.5-4b", "llava-1.5-7b",
           "llava-med-7b", "internvl3-8b", "qwen2.5-vl-7b", "internvl3.5-8b", "qwen3-vl-8b", "gemma-3-12b", "llava-1.5-13b",
           "internvl3-14b", "internvl3.5-14b", "gemma-3-27b", "qwen3-vl-32b", "internvl3-38b", "internvl3.5-38b"]
TRAINING = {"full": ["--finetune", "full"], "LoRA": ["--finetune", "lora"],
            "LoRA on NF4": ["--finetune", "lora", "--quantization", "nf4"]}


def plan(options, *flags):
    command = [options.vlmtrain, "plan", "--json", *map(str, flags), *options.flags]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in (0, 3):
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    return json.loads(done.stdout)


def print_row(*cells):
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def print_head(*cells):
    print_row(*cells)
    print("|" + "---|" * len(cells))


def gigabytes(answer):
    return answer["memory"]["total_bytes"] / 1e9


def rule_of_thumb(gpu, images):
    """Returns the micro-batch size of a rule of thumb: 0.8 GB per sample with one image, 70 % more for each further image,
    a fifth of the GPU free, weights ignored."""
    return min(GLOBAL_BATCH, int(0.8 * gpu / (0.8 * (1 + 0.7 * (images - 1)))))


def describe_gpu_plan(answer):
    if not answer["fits"]:
        return f"does not fit: {gigabytes(answer):.1f} GB"
    recompute, blocks = answer["recompute"], answer["blocks"]
    again = ", ".join(f"{part} {recompute[key]} of {blocks[key]}"
                      for part, key in (("vision", "vision_blocks"), ("language", "language_blocks")) if recompute[key])
    return (f"{answer['micro_batch_size']} × {answer['gradient_accumulation_steps']}, "
            f"{gigabytes(answer):.1f} GB{'; ' + again if again else ''}")


def gpus_table(options):
    print_head("--gpu-gb", "images", "plan: micro-batch × accumulation, GB in all; blocks recomputed", "predicted step, s",
               "planned in, s", "rule of thumb")
    for gpu in (8, 16, 24, 40, 80):
        for images in (1, 2, 3, 4):
            answer = plan(options, "--gpu-gb", gpu, "--images", images)
            thumb = rule_of_thumb(gpu, images)
            step = f"{answer['step_seconds']:.2f}" if answer["fits"] else "-"
            print_row(gpu, images, describe_gpu_plan(answer), step, f"{answer['plan_seconds']:.2f}",
                      f"{thumb} × {GLOBAL_BATCH // thumb if thumb else '-'}")


def describe_preset(answer):
    if answer["fits"]:
        return f"{answer['micro_batch_size']} × {answer['gradient_accumulation_steps']}"
    return f"*{gigabytes(answer):.0f}*"


def presets_table(options):
    gpus = [8, 12, 16, 24, 40, 48, 80, 141]
    print_head("preset", "training", *(f"{gpu} GB" for gpu in gpus))
    with ThreadPoolExecutor(2) as workers:
        for preset in PRESETS:
            for training, own in TRAINING.items():
                answers = workers.map(lambda gpu: plan(options, "--model", preset, "--gpu-gb", gpu, *own), gpus)
                print_row(preset, training, *map(describe_preset, answers))


def describe_saving(planned):
    if not planned:
        return "-"
    return f"{planned['micro_batch_size']} a pass, {planned['total_bytes'] / 1e9:.1f} GB, {planned['step_seconds']:.1f} s"


def first_that_fits(savings):
    return next((f"{saving['name']}: {describe_saving(saving['planned'])}" for saving in savings if saving["planned"]), "-")


def frames_table(options):
    plans = {(frames, gpu): plan(options, "--compare", "--gpu-gb", gpu, "--video-frames", frames)
             for frames in options.frames for gpu in options.gpus}
    print_head("frames", "tokens", *(saving["name"] for saving in plans[options.frames[0], options.gpus[-1]]["compare"]))
    for frames in options.frames:
        answer = plans[frames, options.gpus[-1]]
        singles = [saving["single"] for saving in answer["compare"]]
        print_row(frames, answer["tokens_per_sample"], *(
            f"{single['total_bytes'] / 1e9:.1f} GB, {single['step_seconds']:.1f} s" if single else "-" for single in singles))
    print()
    print_head("frames", "", *(f"{gpu} GB" for gpu in options.gpus))
    for frames in options.frames:
        savings = [plans[frames, gpu]["compare"] for gpu in options.gpus]
        print_row(frames, "before", *(describe_saving(of_gpu[1]["planned"]) for of_gpu in savings))
        print_row("", "after", *(first_that_fits(of_gpu[2:]) for of_gpu in savings))


def plan_ranks(options, ranks, nodes, *flags):
    return plan(options, "--world-size", ranks, "--nodes", nodes, *flags)


def describe_sharding(options, ranks, nodes, sharding):
    """Returns GPU memory, micro-batches and speed of the chosen plan, and r if blocks are recomputed; or the minimum memory."""
    if sharding != "none" and ranks == 1 or sharding == "hybrid" and nodes == 1:
        return "-"
    result = plan_ranks(options, ranks, nodes, "--sharding", sharding)
    if not result["fits"]:
        return f"needs {gigabytes(result):.0f} GB"
    passes = f'{result["micro_batch_size"]} x {result["gradient_accumulation_steps"]}'
    recomputed = " r" if any(result["recompute"].values()) else ""
    return f'{gigabytes(result):.1f} GB, {passes}{recomputed}, {result["tokens_per_second"]:,.0f}'


def describe_ranks(result):
    cells = [f'{result["micro_batch_size"]} x {result["gradient_accumulation_steps"]}',
             f"{gigabytes(result):.1f} GB" if result["fits"] else "-", f'{result["step_seconds"]:.2f} s',
             f'{result["tokens_per_second"]:,.0f}']
    communication = result["communication"]
    if not communication:
        return cells + ["-"] * 4
    return cells + [f'{communication["bytes_per_step"] / 1e6:,.0f} MB in {communication["calls_per_step"]}',
                    f'{communication["min_sent_bytes"] / 1e6:,.0f} MB', f'{1e3 * communication["seconds"]:.0f} ms',
                    f'{1e3 * communication["exposed_seconds"]:.1f} ms']


def ranks_table(options):
    columns = options.shardings or ["micro-batch x passes", "each GPU", "step", "tokens/s", "reduced, in calls",
                                    "minimum sent per rank", "time", "not hidden"]
    print_head("ranks", "machines", *columns)
    for ranks in options.ranks:
        for nodes in (1, 2) if ranks >= 16 else (1,):
            if options.shardings:
                print_row(ranks, nodes, *(describe_sharding(options, ranks, nodes, sharding) for sharding in options.shardings))
            else:
                print_row(ranks, nodes, *describe_ranks(plan_ranks(options, ranks, nodes)))


TABLES = {"gpus": gpus_table, "presets": presets_table, "frames": frames_table, "ranks": ranks_table}


def main():
    numbers = lambda text: [int(number) for number in text.split(",")]  # noqa: E731
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("vlmtrain")
    parser.add_argument("--frames", type=numbers, default=[8, 16, 32, 64])
    parser.add_argument("--gpus", type=numbers, default=[8, 16, 24, 48, 80])
    parser.add_argument("--ranks", type=numbers, default=[1, 2, 4, 8, 16])
    parser.add_argument("--shardings", type=lambda text: text.split(","))
    options, options.flags = parser.parse_known_args()
    TABLES[options.table](options)


if __name__ == "__main__":
    main()
