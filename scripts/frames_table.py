#!/usr/bin/env python3
"""Prints the memory of a model by number of video frames and GPU size, with and without memory savings, as Markdown
(docs/planner.md).

    python3 scripts/frames_table.py build/release/vlmtrain [--frames 8,16] [--gpus 8,24] [further flags of plan]

The first table has a column per row of `plan --compare`. The second shows for each GPU size the plan in 16 bits only, and
the first saving that fits.
"""

import argparse
import json
import subprocess


def plan(vlmtrain, flags, gigabytes, frames):
    command = [vlmtrain, "plan", "--json", "--compare", "--gpu-gb", str(gigabytes), "--video-frames", str(frames), *flags]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in (0, 3):
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    return json.loads(done.stdout)


def words(planned):
    if not planned:
        return "-"
    return f"{planned['micro_batch_size']} a pass, {planned['total_bytes'] / 1e9:.1f} GB, {planned['step_seconds']:.1f} s"


def first_that_fits(rungs):
    for rung in rungs:
        if rung["planned"]:
            return f"{rung['name']}: {words(rung['planned'])}"
    return "-"


def main():
    numbers = lambda text: [int(number) for number in text.split(",")]  # noqa: E731
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vlmtrain")
    parser.add_argument("--frames", type=numbers, default=[8, 16, 32, 64])
    parser.add_argument("--gpus", "--cards", type=numbers, default=[8, 16, 24, 48, 80])
    options, flags = parser.parse_known_args()
    plans = {(frames, gpu): plan(options.vlmtrain, flags, gpu, frames) for frames in options.frames for gpu in options.gpus}

    print("| frames | tokens | " + " | ".join(rung["name"] for rung in plans[options.frames[0], options.gpus[-1]]["compare"]) + " |")
    print("|---|---|" + "---|" * 6)
    for frames in options.frames:
        answer = plans[frames, options.gpus[-1]]
        cells = [f"{rung['single']['total_bytes'] / 1e9:.1f} GB, {rung['single']['step_seconds']:.1f} s" if rung["single"] else "-"
                 for rung in answer["compare"]]
        print(f"| {frames} | {answer['tokens_per_sample']} | " + " | ".join(cells) + " |")
    print()
    print("| frames | | " + " | ".join(f"{gpu} GB" for gpu in options.gpus) + " |")
    print("|---|---|" + "---|" * len(options.gpus))
    for frames in options.frames:
        rungs = [plans[frames, gpu]["compare"] for gpu in options.gpus]
        print(f"| {frames} | before | " + " | ".join(words(gpu_memory[1]["planned"]) for gpu_memory in rungs) + " |")
        print("| | after | " + " | ".join(first_that_fits(gpu_memory[2:]) for gpu_memory in rungs) + " |")


if __name__ == "__main__":
    main()
