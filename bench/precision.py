#!/usr/bin/env python3
"""Trains the quickstart's model on its pictures of shapes in every precision and with every kind of optimizer states, and prints
a table of the losses: docs/benchmarks/precision.md.

    bench/precision.py --vlmtrain build/release/vlmtrain --work /tmp/precision [--steps 1000] [--last 200]

All runs are the same but for `training.precision` and `training.optimizer_states`: the same start, the same samples in the same
order. A loss is the mean over the last steps. The second fp32 run has another seed, so that it sees the samples in another
order: what it differs by is what chance does. Runs on the CPU; needs Python 3.11 and what scripts/make_shapes.py needs.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

RUNS = [
    ("fp32", "fp32", 1),
    ("fp32", "fp32", 2),
    ("fp32", "bf16", 1),
    ("fp32", "8bit", 1),
    ("bf16", "fp32", 1),
    ("bf16", "bf16", 1),
    ("bf16", "8bit", 1),
    ("fp16", "fp32", 1),
    ("fp16", "8bit", 1),
]


def prepare(arguments):
    data = arguments.work / "data"
    if not data.exists():
        subprocess.run([sys.executable, ROOT / "scripts" / "make_shapes.py", "--out", data, "--seed", "1"], check=True)
    model = arguments.work / "model"
    if not model.exists():
        subprocess.run([arguments.vlmtrain, "init", "--preset", "smolvlm-tiny", "--out", model, "--seed", "1"], check=True)
    return data, model


def train(arguments, data, model, precision, states, seed):
    """The losses of all steps, and seconds."""
    run = arguments.work / f"run-{precision}-{states}-{seed}"
    shutil.rmtree(run, ignore_errors=True)
    settings = {
        "model.path": model, "data.train": data / "train.json", "data.image_root": data, "output.dir": run,
        "output.save_steps": 0, "training.max_steps": arguments.steps, "training.precision": precision,
        "training.optimizer_states": states, "training.seed": seed,
    }
    start = time.monotonic()
    subprocess.run([arguments.vlmtrain, "--config", ROOT / "configs" / "quickstart.yaml", "--device", "cpu", "--quiet"]
                   + [f"{key}={value}" for key, value in settings.items()], check=True)
    seconds = time.monotonic() - start
    state = run / "checkpoints" / f"step-{arguments.steps}" / "trainer_state" / "optimizer.safetensors"
    losses = [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert len(losses) == arguments.steps
    return losses, seconds, state.stat().st_size


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vlmtrain", type=Path, default=ROOT / "build" / "release" / "vlmtrain")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--last", type=int, default=200)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    data, model = prepare(arguments)
    wanted = None
    print("| precision | optimizer states | seed | loss | against fp32 | trainer_state | time |")
    print("|---|---|---|---|---|---|---|")
    for precision, states, seed in RUNS:
        losses, seconds, size = train(arguments, data, model, precision, states, seed)
        loss = sum(losses[-arguments.last:]) / arguments.last
        wanted = wanted or loss
        print(f"| {precision} | {states} | {seed} | {loss:.4f} | {100 * (loss / wanted - 1):+.2f} % | {size / 1e6:.1f} MB | "
              f"{seconds:.0f} s |", flush=True)


if __name__ == "__main__":
    main()
