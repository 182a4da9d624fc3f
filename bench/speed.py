"""Compares the speed of vlmtrain and transformers on the same work: python bench/speed.py --vlmtrain build/release/vlmtrain

Creates the workload (bench/make_workload.py) if it does not exist, then runs both programs alternately, --pairs times: first
vlmtrain, which writes the samples of each step (samples.jsonl), then the peer on exactly these samples in that order. Both have the
same checkpoint, precision (--precision bf16: vlmtrain's own, autocast in the peer), threads, learning rate, decay and clipping. No
other work should run on the machine.

Both are measured from outside, in the same way: wall clock from the start of the process, the first line of the metrics file
for the end of the first step, the kernel's peak of resident memory (of the largest process). The speed is tokens without padding
per second over the steps after the warm-up, from the times at which their lines appear. The losses of both are compared step by
step, which verifies that they did the same work.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

HERE = Path(__file__).parent
POLL_SECONDS = 0.005
LEARNING_RATE = 1e-4
CONFIG = """# Written by bench/speed.py
model:
  path: {work}/checkpoint
data:
  train: {work}/train.json
  image_root: {work}/images
  num_workers: {workers}
training:
  global_batch_size: {global_batch}
  max_steps: {steps}
  learning_rate: {learning_rate}
  lr_scheduler: constant
  warmup_ratio: 0
  weight_decay: 0.1
  max_grad_norm: 1.0
  precision: {precision}
  seed: {seed}
output:
  dir: {run}
  log_samples: true
  save_steps: 0
"""


class LineClock(threading.Thread):
    """Records when each line of a growing file first appears."""

    def __init__(self, path):
        super().__init__(daemon=True)
        self.path = path
        self.times = []
        self.done = threading.Event()

    def run(self):
        while not self.done.wait(POLL_SECONDS):
            self.look()

    def look(self):
        lines = self.path.read_bytes().count(b"\n") if self.path.exists() else 0
        self.times += [time.perf_counter()] * (lines - len(self.times))

    def finish(self):
        self.done.set()
        self.join()
        self.look()


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def measure(command, metrics_path, log_path, environment, warmup):
    """Runs a trainer to completion."""
    metrics_path.unlink(missing_ok=True)
    clock = LineClock(metrics_path)
    with open(log_path, "w") as log:
        began = time.perf_counter()
        clock.start()
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        wall_seconds = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    clock.finish()
    if process.returncode != 0:
        sys.exit(f"{command[0]} ended with {process.returncode}; the end of {log_path}:\n{log_path.read_text()[-3000:]}")

    lines = read_lines(metrics_path)
    padded = sum(line.get("padded_tokens", line["tokens"]) for line in lines)
    tokens = [line["tokens"] for line in lines]
    return {
        "tokens_per_second": sum(tokens[warmup:]) / (clock.times[-1] - clock.times[warmup - 1]),
        "own_tokens_per_second": sum(tokens[warmup:]) / sum(line["step_seconds"] for line in lines[warmup:]),
        "whole_process_tokens_per_second": sum(tokens) / wall_seconds,
        "first_step_seconds": clock.times[0] - began,
        "wall_seconds": wall_seconds,
        "peak_rss_bytes": usage.ru_maxrss * 1024,
        "padding": 1 - sum(tokens) / padded,
        "tokens": tokens,
        "losses": [line["loss"] for line in lines],
    }


def run_vlmtrain(arguments, run, seed, environment):
    config = run.with_suffix(".yaml")
    config.write_text(
        CONFIG.format(
            work=arguments.work, run=run, steps=arguments.steps, global_batch=arguments.global_batch,
            workers=arguments.workers, learning_rate=LEARNING_RATE, seed=seed,
            precision=arguments.precision,
        )
    )
    command = [str(arguments.vlmtrain), "--config", str(config), *arguments.overrides]
    return measure(command, run / "metrics.jsonl", run.with_suffix(".log"), environment, arguments.warmup)


def run_peer(arguments, run, environment):
    order = run.with_suffix(".order.json")
    order.write_text(json.dumps([line["ids"] for line in read_lines(run / "samples.jsonl")]))
    metrics = run.with_suffix(".peer.jsonl")
    command = [
        sys.executable, str(HERE / "peer_transformers.py"), "--checkpoint", str(arguments.work / "checkpoint"),
        "--data", str(arguments.work / "train.json"), "--image-root", str(arguments.work / "images"),
        "--order", str(order), "--threads", str(arguments.threads), "--workers", str(arguments.workers),
        "--precision", arguments.precision, "--learning-rate", str(LEARNING_RATE), "--warmup", str(arguments.warmup), "--metrics", str(metrics),
    ]
    return measure(command, metrics, run.with_suffix(".peer.log"), environment, arguments.warmup)


def check_same_work(ours, peer):
    if ours["tokens"] != peer["tokens"]:
        sys.exit(f"the two did not train on the same tokens: {ours['tokens']} and {peer['tokens']}")
    return max(abs(a - b) / abs(b) for a, b in zip(ours["losses"], peer["losses"]))


def table(pairs):
    rows = [
        ("tokens/s after warm-up", "tokens_per_second", 1, "{:.0f}"),
        ("tokens/s, whole process", "whole_process_tokens_per_second", 1, "{:.0f}"),
        ("seconds to the end of the first step", "first_step_seconds", 1, "{:.2f}"),
        ("peak resident memory, MB", "peak_rss_bytes", 1e6, "{:.0f}"),
    ]
    text = "| median of the runs | vlmtrain | transformers | ratio (median of pairs; least, most) |\n|---|---|---|---|\n"
    for label, key, unit, style in rows:
        ours, peer = [pair["vlmtrain"][key] for pair in pairs], [pair["transformers"][key] for pair in pairs]
        ratios = [a / b for a, b in zip(ours, peer)]
        values = [style.format(statistics.median(side) / unit) for side in (ours, peer)]
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}, {max(ratios):.2f})"
        text += f"| {label} | {values[0]} | {values[1]} | {spread} |\n"
    difference = max(pair["largest_relative_loss_difference"] for pair in pairs)
    text += f"\npadding in the peer's batches: {100 * statistics.mean(pair['transformers']['padding'] for pair in pairs):.0f} %"
    return text + f"\nlargest relative difference of a step's loss: {difference:.1e}\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vlmtrain", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("runs/bench").absolute(), help="workload and results")
    parser.add_argument("--model", choices=["idefics3", "qwen3_5"], default="idefics3")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--global-batch", type=int, default=8)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--equal-lengths", action="store_true", help="use samples of one length, without padding")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("overrides", nargs="*", help="key=value for vlmtrain")
    arguments = parser.parse_args()
    if not 1 <= arguments.warmup < arguments.steps:
        parser.error("--warmup must be at least 1 and less than --steps")
    arguments.work = arguments.work.absolute()
    if arguments.model != "idefics3":
        arguments.work /= arguments.model
    if arguments.equal_lengths:
        arguments.work /= "equal"

    if not (arguments.work / "train.json").exists():
        lengths = ["--equal-lengths"] if arguments.equal_lengths else []
        subprocess.run([sys.executable, str(HERE / "make_workload.py"), "--model", arguments.model, *lengths, str(arguments.work)], check=True)
    environment = os.environ | {"OMP_NUM_THREADS": str(arguments.threads), "OMP_WAIT_POLICY": "passive",
                                "GOMP_SPINCOUNT": "1000", "HF_HUB_OFFLINE": "1"}
    pairs = []
    for number in range(1, arguments.pairs + 1):
        run = arguments.work / f"run-{number}-{int(time.time())}"
        ours = run_vlmtrain(arguments, run, number, environment)
        peer = run_peer(arguments, run, environment)
        difference = check_same_work(ours, peer)
        pairs.append({"vlmtrain": ours, "transformers": peer, "largest_relative_loss_difference": difference})
        print(table(pairs[-1:]), flush=True)
    print(table(pairs))
    settings = {key: str(value) for key, value in vars(arguments).items()}
    (arguments.work / "speed.json").write_text(json.dumps({"settings": settings, "pairs": pairs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
