#!/usr/bin/env python3
"""Trains on mixed samples (text only, one to four images) on virtual GPUs of decreasing size, down to the smallest possible.

    python bench/memory_sweep.py --vlmtrain build/release/vlmtrain --preset smolvlm-tiny [--steps 100] [--out FOLDER]

All runs have the same data and a micro-batch size of 8, which small GPUs cannot hold: micro-batches are split where
needed (memory.allow_splits). Each size runs with the look-ahead, and with only the out-of-memory guard. A row shows
whether the run completed, how many steps were split before they failed, how many failed and were repeated, and the
error of the look-ahead's forecast. Exit code 1 if a run that was planned to fit does not complete.
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys

from PIL import Image


def write_data(folder: pathlib.Path, samples: int) -> pathlib.Path:
    random.seed(6)
    (folder / "images").mkdir(parents=True, exist_ok=True)
    sizes = [(320, 240), (640, 480), (1024, 768), (400, 1200)]
    for number, size in enumerate(sizes):
        Image.effect_noise(size, 60).convert("RGB").save(folder / "images" / f"{number}.jpg")
    records = []
    for number in range(samples):
        images = [f"images/{random.randrange(len(sizes))}.jpg" for _ in range(random.choice([0, 1, 1, 2, 3, 4]))]
        question = "<image>" * len(images) + "What is shown? " * random.randint(1, 30)
        answer = "It is noise of some size. " * random.randint(1, 20)
        records.append({"id": f"mixed-{number}", "image": images, "conversations": [
            {"from": "human", "value": question}, {"from": "gpt", "value": answer}]})
    path = folder / "mixed.json"
    path.write_text(json.dumps(records))
    return path


def run(args, model, data, gigabytes, look_ahead, folder):
    command = [args.vlmtrain, "train", "--config", "/dev/stdin", "--device", f"virtual:{args.gpu}", "--quiet", "--json",
               f"model.path={model}", f"data.train={data}", f"output.dir={folder}", "training.global_batch_size=16",
               "training.micro_batch_size=8", f"training.max_steps={args.steps}", f"memory.limit_gb={gigabytes}",
               "memory.allow_splits=true", "memory.mode=aggressive", f"memory.look_ahead={'true' if look_ahead else 'false'}"]
    if args.fixed_segments:
        command.append("memory.expandable_segments=false")
    return subprocess.run(command, capture_output=True, text=True, check=False, input="")


def summary(folder: pathlib.Path):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    measured = json.loads((folder / "plan.json").read_text())["measured"]
    return {"steps": len(lines),
            "split": sum(line["forecast_splits"] > 0 for line in lines),
            "failed": sum(line["oom_splits"] > 0 for line in lines),
            "micro_batches": sum(line["micro_batches"] for line in lines) / len(lines),
            "reserved": max(line["reserved_peak_bytes"] for line in lines),
            "retries": measured["allocation_retries"],
            "look_ahead": measured.get("look_ahead")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vlmtrain", required=True)
    parser.add_argument("--preset", default="smolvlm-256m")
    parser.add_argument("--tokenizer")
    parser.add_argument("--gpu", "--card", default="rtx4090")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--sizes", type=int, default=8, help="number of GPU sizes between the largest and the smallest")
    parser.add_argument("--fixed-segments", action="store_true", help="use PyTorch's fixed segments, which fragment")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("/tmp/vlmtrain-memory-sweep"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    model = args.out / args.preset
    if not model.exists():
        tokenizer = ["--tokenizer", args.tokenizer] if args.tokenizer else []
        subprocess.run([args.vlmtrain, "init", "--preset", args.preset, "--out", model, *tokenizer], check=True,
                       capture_output=True)
    data = write_data(args.out, 400)

    def at(gigabytes, look_ahead):
        folder = args.out / f"run-{gigabytes:.3f}-{'look-ahead' if look_ahead else 'guard'}"
        subprocess.run(["rm", "-rf", folder], check=True)
        outcome = run(args, model, data, f"{gigabytes:.3f}", look_ahead, folder)
        return outcome, folder / f"virtual-{args.gpu}"

    steps, args.steps = args.steps, 10
    ample, folder = at(25, True)
    if ample.returncode != 0:
        sys.exit(ample.stderr)
    context = json.loads((folder / "plan.json").read_text())["memory"]["context_bytes"] / 1e9
    needed = summary(folder)["reserved"] / 1e9
    largest, smallest, refused = context + 1.2 * needed, context + 1.2 * needed, context
    args.steps = 2
    while smallest - refused > 0.01 * needed:  # the smallest GPU that a plan accepts
        middle = (smallest + refused) / 2
        outcome, _ = at(middle, True)
        smallest, refused = (middle, refused) if outcome.returncode == 0 else (smallest, middle)
    args.steps = steps
    print(f"{args.preset}, {args.steps} steps of 16 mixed samples in micro-batches of 8 on a virtual {args.gpu}; "
          f"{'fixed' if args.fixed_segments else 'expandable'} segments\n")
    print("| GB | | steps done | split in advance | failed, repeated | forecast | micro-batches a step | reserved GB | "
          "retries | look-ahead's error | look-ahead CPU ms/step |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    failures = 0
    for number in range(args.sizes):
        gigabytes = smallest + (largest - smallest) * (1 - number / (args.sizes - 1))
        for look_ahead in (True, False):
            outcome, folder = at(gigabytes, look_ahead)
            if outcome.returncode != 0:
                failures += 1
                print(f"| {gigabytes:.2f} | {'look-ahead' if look_ahead else 'guard'} | exit {outcome.returncode}: "
                      f"{outcome.stderr.splitlines()[-1][:200]} |")
                continue
            row = summary(folder)
            forecast = 100 * row["split"] / max(1, row["split"] + row["failed"])
            look_ahead = row["look_ahead"]
            print(f"| {gigabytes:.2f} | {'look-ahead' if look_ahead else 'guard'} | {row['steps']} | {row['split']} | {row['failed']} | "
                  f"{f'{forecast:.0f} %' if row['split'] + row['failed'] else '-'} | {row['micro_batches']:.2f} | "
                  f"{row['reserved'] / 1e9:.2f} | {row['retries']} | "
                  + (f"{100 * look_ahead['worst_error']:.2f} % | {1000 * look_ahead['cpu_seconds'] / max(1, look_ahead['forecast_steps']):.0f} |"
                     if look_ahead else "- | - |"), flush=True)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
