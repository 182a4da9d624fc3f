"""Where a training step's time goes on a card: a table of kernels by what they do, of what bench/kernel_times.cpp wrote.

    python bench/kernel_times.py times.txt [--kernels 20]

A step is what runs between two updates of weights; the last whole one is taken. Times are the card's.
"""

import argparse
import re
import subprocess
from collections import defaultdict
from pathlib import Path

UPDATES = ("adamw", "multi_tensor_apply")
# Kernels of another step lie between those of two updates, and none between those of one.
BETWEEN_STEPS = 500
KINDS = {
    "products, aligned": lambda name: "nvjet" in name or "align8" in name,
    "products, misaligned": lambda name: "align" in name and "cutlass" in name and "flash" not in name,
    "other products": lambda name: "gemm" in name.lower() or "splitK" in name or "gemv" in name,
    "attention": lambda name: "flash" in name or "fmha" in name or "cutlassF" in name or "cutlassB" in name,
    "own kernels": lambda name: "vlmtrain::" in name,
    "ATen's kernels": lambda name: True,
}


def read(path):
    """Names by number, and (start, end, number) in order. A last line without its end was cut off, and does not count."""
    names, kernels = {}, []
    whole, _, _ = path.read_text(encoding="utf-8", errors="replace").rpartition("\n")
    for line in whole.split("\n"):
        kind, _, rest = line.partition(" ")
        words = rest.split(" ", 1 if kind == "N" else 2)
        if kind == "N" and len(words) == 2:
            names[int(words[0])] = words[1]
        elif kind == "K" and len(words) == 3 and words[2]:
            kernels.append((int(words[1]), int(words[2]), int(words[0])))
    plain = subprocess.run(["c++filt"], input="\n".join(names.values()), capture_output=True, text=True, check=True)
    return dict(zip(names, plain.stdout.splitlines(), strict=True)), sorted(kernels)


def last_step(names, kernels):
    """→ (its kernels, the nanoseconds from the end of the update before it to the end of its own)"""
    updates = [i for i, kernel in enumerate(kernels) if any(word in names[kernel[2]].lower() for word in UPDATES)]
    ends = [i for i, after in zip(updates, [*updates[1:], len(kernels) + BETWEEN_STEPS]) if after - i >= BETWEEN_STEPS]
    if len(ends) < 2:
        raise SystemExit("kernel_times: there are no two updates of weights; train for some steps")
    first, last = ends[-2], ends[-1]
    return kernels[first + 1 : last + 1], kernels[last][1] - kernels[first][1]


def kind_of(name):
    return next(kind for kind, holds in KINDS.items() if holds(name))


def short(name):
    name = re.sub(r"vlmtrain::kernels::|\(anonymous namespace\)::|_GLOBAL__N_\w+::|at::native::|c10::|^void ", "", name)
    return name if len(name) <= 100 else name[:99] + "…"


def table(title, sums, wall):
    print(f"\n| {title} | launches | ms | % of the step |\n|---|---|---|---|")
    for what, (count, nanoseconds) in sums:
        print(f"| {what} | {count:,} | {nanoseconds / 1e6:.1f} | {100 * nanoseconds / wall:.1f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("times", type=Path)
    parser.add_argument("--kernels", type=int, default=20, help="how many of the longest to name")
    arguments = parser.parse_args()
    names, kernels = read(arguments.times)
    step, wall = last_step(names, kernels)
    by_kind, by_name = defaultdict(lambda: [0, 0]), defaultdict(lambda: [0, 0])
    for start, end, number in step:
        for sums, key in ((by_kind, kind_of(names[number])), (by_name, short(names[number]))):
            sums[key][0] += 1
            sums[key][1] += end - start
    busy = sum(end - start for start, end, _ in step)
    print(f"A step of {wall / 1e6:.1f} ms: {len(step):,} kernels, which run for {busy / 1e6:.1f} ms.")

    def longest(sums):
        return sorted(sums.items(), key=lambda item: -item[1][1])

    table("what", longest(by_kind), wall)
    table("kernel", longest(by_name)[: arguments.kernels], wall)


if __name__ == "__main__":
    main()
