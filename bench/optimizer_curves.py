#!/usr/bin/env python3
"""Draws the training losses of up to four runs in one figure: optimizer_curves.py OUT.svg NAME=RUN_DIR ….

A curve is the mean loss of the last --window steps (RUN_DIR/metrics.jsonl). Prints the end of each curve.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "real_weights"))

import chart  # noqa: E402

COLORS = ("#1f6fb2", "#b3261e", "#2e7d32", "#8e5bb5")
WIDTH = 1.5


def read_curve(run, window):
    losses = [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [statistics.fmean(losses[max(0, end - window):end]) for end in range(1, len(losses) + 1)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("runs", nargs="+", metavar="NAME=RUN_DIR")
    parser.add_argument("--window", type=int, default=50, help="default: %(default)s steps")
    parser.add_argument("--title", default="Training loss")
    arguments = parser.parse_args()
    if len(arguments.runs) > len(COLORS):
        parser.error(f"{len(arguments.runs)} runs; at most {len(COLORS)}")
    curves, styles = [], []
    for color, run in zip(COLORS, arguments.runs):
        name, _, folder = run.partition("=")
        curves.append(read_curve(Path(folder), arguments.window))
        styles.append((name, color, WIDTH))
        print(f"{name}: {curves[-1][-1]:.4f} after {len(curves[-1])} steps")
    arguments.out.write_text(chart.svg({arguments.title: curves}, styles))


if __name__ == "__main__":
    main()
