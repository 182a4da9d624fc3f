"""Compares published training speeds with the predictions of vlmtrain's cost model, as Markdown tables.

    python bench/published_speeds.py --build build/release

`vlmtrain plan` counts products and attention of each case of bench/published_speeds/cases.py; the bytes that the kernels
of the published program move are counted by hand (work.py). The efficiencies of products are fitted on every second case in the order
of their keys; the others are held out. docs/benchmarks/published.md describes the counts and the results.

No GPU is used. One process runs at a time, on one thread; all take a minute and a half.
"""

import argparse
import math
import statistics
from dataclasses import dataclass, field
from pathlib import Path

from published_speeds.gpus import GPUS
from published_speeds.cases import halves
from published_speeds.work import make_work

KINDS = ("full rate", "half rate")
GRID = [percent / 100 for percent in range(30, 101)]


@dataclass(frozen=True)
class Efficiencies:
    """Efficiencies. Those of attention and bandwidth are constants of src/planner/dry_run/cost_recorder.cpp, not fitted."""

    products: dict = field(default_factory=lambda: dict.fromkeys(KINDS, 0.7))  # before the fit
    attention: float = 0.45
    hopper_attention: float = 0.20
    bandwidth: float = 0.8

    def of_attention(self, gpu):
        return self.hopper_attention if gpu.has_hopper_products else self.attention


@dataclass(frozen=True)
class Row:
    case: object
    work: object

    def predicted(self, efficiencies):
        """Returns the predicted tokens per second; kernels run one after another."""
        gpu = GPUS[self.case.gpu]
        return 1 / (
            self.work.products / (gpu.bf16 * efficiencies.products[gpu.kind])
            + self.work.attention / (gpu.bf16 * efficiencies.of_attention(gpu))
            + self.work.moved / (gpu.bandwidth * efficiencies.bandwidth)
        )

    def deviation(self, efficiencies):
        """Returns the deviation in percent; positive if the prediction exceeds the published speed."""
        return 100 * (self.predicted(efficiencies) / self.case.tokens_per_second - 1)


def fit(rows):
    """Returns for each kind of GPU the efficiency that minimizes the squared logarithms of predicted / published."""

    def loss(kind, value):
        trial = Efficiencies(products={kind: value})
        mine = [row for row in rows if GPUS[row.case.gpu].kind == kind]
        return sum(math.log(row.predicted(trial) / row.case.tokens_per_second) ** 2 for row in mine)

    return Efficiencies(products={kind: min(GRID, key=lambda value: loss(kind, value)) for kind in KINDS})


def training(case):
    kind = f"LoRA {case.lora_rank}" if case.lora_rank else "full"
    return kind + (f", {case.recomputed:.0%} recomputed" if case.recomputed else "")


def table(parts, before, after):
    print(
        "| half | GPU | source | model | training | micro-batch | kernels | published, tokens/s | predicted "
        "| deviation % | before the fit % | vlmtrain's own step |\n|---|---|---|---|---|---|---|---|---|---|---|---|"
    )
    for half, rows in parts.items():
        for row in rows:
            case = row.case
            ranks = f", 1 of {case.ranks}" if case.ranks > 1 else ""
            print(
                f"| {half} | {case.gpu}{ranks} | [{case.who}]({case.source}) | {case.model} | {training(case)} "
                f"| {case.samples} × {case.tokens} | {case.kernels} | {case.tokens_per_second:,.0f} "
                f"| {row.predicted(after):,.0f} | {row.deviation(after):+.1f} | {row.deviation(before):+.1f} "
                f"| {row.work.own_tokens_per_second:,.0f} |"
            )


def summary(parts, before, after):
    print("| half | cases | median error % | before | worst % | which |\n|---|---|---|---|---|---|")
    for half, rows in parts.items():
        worst = max(rows, key=lambda row: abs(row.deviation(after)))
        medians = [statistics.median(abs(row.deviation(trial)) for row in rows) for trial in (after, before)]
        print(
            f"| {half} | {len(rows)} | {medians[0]:.1f} | {medians[1]:.1f} | {worst.deviation(after):+.1f} "
            f"| {worst.case.who}, {worst.case.model}, {worst.case.gpu} |"
        )
    print("\nEfficiency of products: " + ", ".join(f"{kind} {after.products[kind]:.2f}" for kind in KINDS) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=lambda path: Path(path).resolve(), required=True, help="folder with vlmtrain")
    build = parser.parse_args().build
    fitted, held_out = ([Row(case, make_work(case, build)) for case in half] for half in halves())
    parts = {"fit": fitted, "held out": held_out}
    before, after = Efficiencies(), fit(fitted)
    summary(parts, before, after)
    table(parts, before, after)


if __name__ == "__main__":
    main()
