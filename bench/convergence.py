#!/usr/bin/env python3
"""Compares the losses of one fp32 run whose global batch of 16 is split as 16x1, 8x2, 4x4, 2x8 and 1x16.

    python bench/convergence.py --vlmtrain build/release/vlmtrain --model FOLDER --data FILE [--steps 200]

A split is micro-batch size x accumulation steps. The table has the losses of the first and the last step, the mean of
the last twenty, and the largest difference from the run with 16x1 over all steps. Exit code 1 if a final loss is more than 1e-4 away.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile


def losses(args, micro_batch, folder):
    subprocess.run([args.vlmtrain, "train", "--config", "/dev/stdin", "--device", "cpu", "--quiet",
                    f"model.path={args.model}", f"data.train={args.data}", f"output.dir={folder}",
                    "training.precision=fp32", "training.global_batch_size=16", f"training.max_steps={args.steps}",
                    f"training.micro_batch_size={micro_batch}", f"training.learning_rate={args.learning_rate}",
                    "output.save_steps=0", "output.sample_predictions=0"], check=True, input=b"")
    return [json.loads(line)["loss"] for line in (pathlib.Path(folder) / "metrics.jsonl").read_text().splitlines()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vlmtrain", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    args = parser.parse_args()
    print("| micro-batch x accumulation | first loss | last loss | mean of the last 20 | most different from 16x1 |")
    print("|---|---|---|---|---|")
    reference = None
    worst = 0.0
    for micro_batch in (16, 8, 4, 2, 1):
        with tempfile.TemporaryDirectory() as folder:
            losses_by_setting = losses(args, micro_batch, folder)
        reference = reference or losses_by_setting
        most = max(abs(a - b) for a, b in zip(losses_by_setting, reference, strict=True))
        worst = max(worst, abs(losses_by_setting[-1] - reference[-1]))
        print(f"| {micro_batch}x{16 // micro_batch} | {losses_by_setting[0]:.6f} | {losses_by_setting[-1]:.6f} | {sum(losses_by_setting[-20:]) / 20:.6f} | "
              f"{most:.1e} |", flush=True)
    print(f"\nfinal losses within {worst:.1e}")
    sys.exit(1 if worst > 1e-4 else 0)


if __name__ == "__main__":
    main()
