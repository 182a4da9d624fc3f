#!/usr/bin/env python3
"""Measures the cost of checkpoints with output.async_save false and true, alternating: the table of docs/benchmarks/data-loading.md.

    bench/saving.py --vlmtrain build/release/vlmtrain --work /tmp/saving [--rows 200000] [--repeats 3] [--save-steps 12]

The quickstart's model is initialized at random and fully trained in fp32 on the CPU on text only; `--rows` of its vocabulary make
checkpoints large relative to its steps. They are written to --work, so that disk is measured. All times are those at which lines of
metrics.jsonl appear. "A step waits" is the time between the lines around a checkpoint, minus the median of the other intervals of the
run that waits. "Steps meanwhile" is the mean of the other intervals between two checkpoints, during which the writer uses the same
processors and disk. A run's last checkpoint is not counted, because both settings wait for it. Needs Python 3.11.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
from pathlib import Path

from speed import LineClock

ROOT = Path(__file__).resolve().parent.parent
# Between two counted checkpoints, and before the last one.
CHECKPOINTS = 3


def prepare(arguments):
    model = arguments.work / f"model-{arguments.rows}"
    if not model.exists():
        subprocess.run([arguments.vlmtrain, "init", "--preset", "smolvlm-tiny", "--out", model], check=True)
        config = json.loads((model / "config.json").read_text())
        config["text_config"]["vocab_size"] = arguments.rows
        (model / "config.json").write_text(json.dumps(config, indent=2))
    words = " ".join(["The left lung is clear and the heart is of normal size."] * 4)
    records = [{"id": f"words-{i}", "conversations": [{"from": "human", "value": "What is seen?"},
                                                      {"from": "gpt", "value": words}]} for i in range(8)]
    (arguments.work / "train.json").write_text(json.dumps(records))
    return model


def train(arguments, model, asynchronous):
    """Returns the seconds between the lines of consecutive steps, the bytes of a checkpoint, save_seconds and plan.json."""
    run = arguments.work / "run"
    shutil.rmtree(run, ignore_errors=True)
    settings = {
        "model.path": model, "data.train": arguments.work / "train.json", "output.dir": run, "output.save_steps": arguments.save_steps,
        "output.save_total_limit": 1, "output.async_save": asynchronous, "output.sample_predictions": 0, "output.report": "false",
        "output.tensorboard": "false", "training.max_steps": CHECKPOINTS * arguments.save_steps, "training.global_batch_size": 1,
        "training.precision": "fp32", "model.resize_embeddings": "true",
    }
    (arguments.work / "empty.yaml").write_text("{}\n")
    os.sync()
    clock = LineClock(run / "metrics.jsonl")
    clock.start()
    with (arguments.work / f"log-{asynchronous}.txt").open("w") as log:
        result = subprocess.run([arguments.vlmtrain, "--config", arguments.work / "empty.yaml", "--device", "cpu", "--json"]
                              + [f"{key}={value}" for key, value in settings.items()], check=True, stdout=subprocess.PIPE, stderr=log,
                              env={**os.environ, "OMP_NUM_THREADS": str(arguments.threads), "VLMTRAIN_PAST_RUNS": "off"})
    clock.finish()
    size = sum(file.stat().st_size for file in (run / "checkpoints").rglob("*") if file.is_file() and not file.is_symlink())
    gaps = [after - before for before, after in zip(clock.times, clock.times[1:])]
    return gaps, size, json.loads(result.stdout)["save_seconds"], json.loads((run / "plan.json").read_text())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vlmtrain", type=Path, default=ROOT / "build" / "release" / "vlmtrain")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--save-steps", type=int, default=12)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    model = prepare(arguments)

    waits, meanwhile, in_all = {"false": [], "true": []}, {"false": [], "true": []}, {"false": [], "true": []}
    for repeat in range(arguments.repeats):
        ordinary = None
        for asynchronous in ("false", "true"):
            gaps, size, seconds, plan = train(arguments, model, asynchronous)
            at_checkpoints = [number * arguments.save_steps - 1 for number in range(1, CHECKPOINTS)]
            between = gaps[at_checkpoints[0] + 1:at_checkpoints[-1]]
            ordinary = ordinary or statistics.median(between)
            waits[asynchronous] += [gaps[i] - ordinary for i in at_checkpoints]
            meanwhile[asynchronous].append(statistics.fmean(between))
            in_all[asynchronous].append(seconds)
            print(f"# {repeat + 1}: async_save {asynchronous}: waits {[round(gaps[i] - ordinary, 2) for i in at_checkpoints]}, "
                  f"a step {ordinary:.2f} s, copies {plan['measured']['checkpoint_copies_bytes'] / 1e9:.2f} GB", flush=True)

    print(f"\nsmolvlm-tiny with {arguments.rows:,} rows, {arguments.threads} threads, checkpoints of {size / 1e9:.2f} GB every {arguments.save_steps} steps, "
          f"{arguments.repeats} runs each way\n")
    print("| output.async_save | a step waits for a checkpoint | least to most | steps meanwhile | save_seconds of a run, the last checkpoint included |")
    print("|---|---|---|---|---|")
    for asynchronous in ("false", "true"):
        own = waits[asynchronous]
        print(f"| {asynchronous} | {statistics.median(own):.2f} s | {min(own):.2f} to {max(own):.2f} s | "
              f"{statistics.fmean(meanwhile[asynchronous]):.2f} s | {statistics.median(in_all[asynchronous]):.1f} s |")
    print(f"\nratio of the waits: {statistics.median(waits['false']) / statistics.median(waits['true']):.1f}")


if __name__ == "__main__":
    main()
