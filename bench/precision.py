#!/usr/bin/env python3
"""Trains the quickstart's model on its images of shapes in every precision, with every data type of optimizer states and
several seeds, and prints a table of the losses: docs/benchmarks/results.md.

    bench/precision.py --vlmtrain build/release/vlmtrain --work /tmp/precision [--seeds 12] [--steps 400] [--last 100] [--jobs 2]

Runs with one seed differ only in `training.precision` and `training.optimizer_states`: they have the same random initial
weights and the same samples in the same order. The loss of a run is the mean over its last steps. Rounding makes two runs
diverge as much as another order of the samples does, so single runs show little. The table therefore has the mean over
all seeds of the ratio to fp32's loss with the same seed, and its standard error. Each run uses one CPU core; `--jobs`
run at a time. Needs Python 3.11 and
what scripts/make_shapes.py needs.
"""

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

KINDS = [
    ("fp32", "fp32"),
    ("fp32", "bf16"),
    ("fp32", "8bit"),
    ("bf16", "fp32"),
    ("bf16", "bf16"),
    ("bf16", "8bit"),
    ("fp16", "fp32"),
    ("fp16", "8bit"),
]


def prepare(arguments):
    """Creates the data set's folder, and a randomly initialized model for each seed."""
    data = arguments.work / "data"
    if not data.exists():
        subprocess.run([sys.executable, ROOT / "scripts" / "make_shapes.py", "--out", data, "--seed", "1"], check=True)
    models = {}
    for seed in range(1, arguments.seeds + 1):
        models[seed] = arguments.work / f"model-{seed}"
        if not models[seed].exists():
            subprocess.run([arguments.vlmtrain, "init", "--preset", "smolvlm-tiny", "--out", models[seed], "--seed", str(seed)],
                           check=True)
    return data, models


def train(arguments, data, model, precision, states, seed):
    """Returns the mean loss of the last steps, and the bytes of the optimizer's states."""
    run = arguments.work / f"run-{precision}-{states}-{seed}"
    shutil.rmtree(run, ignore_errors=True)
    settings = {
        "model.path": model, "data.train": data / "train.json", "data.image_root": data, "output.dir": run,
        "output.save_steps": 0, "output.sample_predictions": 0, "training.max_steps": arguments.steps,
        "training.precision": precision, "training.optimizer_states": states, "training.seed": seed,
        "training.learning_rate": arguments.learning_rate,
    }
    subprocess.run([arguments.vlmtrain, "--config", ROOT / "configs" / "quickstart.yaml", "--device", "cpu", "--quiet"]
                   + [f"{key}={value}" for key, value in settings.items()], check=True,
                   env={**os.environ, "OMP_NUM_THREADS": "1"})
    state = run / "checkpoints" / f"step-{arguments.steps}" / "trainer_state" / "optimizer.safetensors"
    losses = [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert len(losses) == arguments.steps
    size = state.stat().st_size
    shutil.rmtree(run / "checkpoints")
    loss = statistics.fmean(losses[-arguments.last:])
    print(f"{precision} {states} seed {seed}: {loss:.4f}", file=sys.stderr, flush=True)
    return loss, size


def deviation(values):
    return statistics.stdev(values) if len(values) > 1 else math.nan


def mean_and_error(values):
    return statistics.fmean(values), deviation(values) / math.sqrt(len(values))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vlmtrain", type=Path, default=ROOT / "build" / "release" / "vlmtrain")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--last", type=int, default=100)
    parser.add_argument("--learning-rate", default="1.0e-3", help="default: the quickstart's; with a smaller one, runs diverge later")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--kinds", default=",".join("-".join(kind) for kind in KINDS),
                        help="precision and optimizer states of each kind; the baseline fp32-fp32 is always included")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    kinds = [KINDS[0]] + [kind for kind in KINDS[1:] if "-".join(kind) in arguments.kinds.split(",")]
    data, models = prepare(arguments)
    with ThreadPoolExecutor(arguments.jobs) as pool:
        futures = {(kind, seed): pool.submit(train, arguments, data, models[seed], *kind, seed)
                   for seed in models for kind in kinds}
        results = {run: future.result() for run, future in futures.items()}

    fp32 = {seed: results[KINDS[0], seed][0] for seed in models}
    print(f"fp32: loss {statistics.fmean(fp32.values()):.4f} over {len(fp32)} seeds, from {min(fp32.values()):.4f} to "
          f"{max(fp32.values()):.4f} (standard deviation {100 * deviation(list(fp32.values())) / statistics.fmean(fp32.values()):.1f} %)\n")
    print("| precision | optimizer states | mean loss | against fp32, mean over seeds | single seeds | trainer_state |")
    print("|---|---|---|---|---|---|")
    for kind in kinds:
        losses = [results[kind, seed][0] for seed in models]
        changes = [100 * (results[kind, seed][0] / fp32[seed] - 1) for seed in models]
        change, error = mean_and_error(changes)
        print(f"| {kind[0]} | {kind[1]} | {statistics.fmean(losses):.4f} | {change:+.2f} % ± {error:.2f} % | "
              f"{min(changes):+.1f} … {max(changes):+.1f} % | {results[kind, 1][1] / 1e6:.1f} MB |")


if __name__ == "__main__":
    main()
