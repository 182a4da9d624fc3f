"""Prints where a training step's GPU time goes: a table of kernels by purpose, from a recording of bench/kernel_times.cpp.

    python bench/kernel_times.py times.txt [--kernels 20]

A step is the work between two optimizer updates; the last complete one is used. Times are GPU times. bench/step_parts.py
separates the parts of the model.
"""

import argparse
import re
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

UPDATES = ("adamw", "multi_tensor_apply")
# Kernels of another step lie between the kernels of two updates, never between the kernels of one update.
BETWEEN_STEPS = 500
KINDS = {
    "products, aligned": lambda name: "nvjet" in name or "align8" in name,
    "products, misaligned": lambda name: "align" in name and "cutlass" in name and "flash" not in name,
    "other products": lambda name: "gemm" in name.lower() or "splitK" in name or "gemv" in name,
    "attention": lambda name: "flash" in name or "fmha" in name or "cutlassF" in name or "cutlassB" in name,
    "custom kernels": lambda name: "vlmtrain::" in name,
    "ATen's kernels": lambda name: True,
}


class Kernel(NamedTuple):
    """A kernel launch: nanoseconds, the number of its name, and grid and block, which are empty in files without them."""

    start: int
    end: int
    number: int
    grid: tuple = ()
    block: tuple = ()


def demangle(names):
    """Returns the names as C++ spells them, or unchanged where no c++filt is installed."""
    if not shutil.which("c++filt"):
        return names
    return subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout.splitlines()


def read(path):
    """Returns names by number, and the kernels in order. Ignores a last line without its end, which was cut off."""
    names, kernels = {}, []
    whole, _, _ = path.read_text(encoding="utf-8", errors="replace").rpartition("\n")
    for line in whole.split("\n"):
        kind, _, rest = line.partition(" ")
        if kind == "N":
            number, _, name = rest.partition(" ")
            names[int(number)] = name
        elif kind == "K":
            number, start, end, *sizes = map(int, rest.split())
            kernels.append(Kernel(start, end, number, tuple(sizes[:3]), tuple(sizes[3:])))
    return dict(zip(names, demangle(list(names.values())), strict=True)), sorted(kernels)


def find_last_step(names):
    """Returns the indices of a step's first and last kernel and of the last kernel of the preceding update, in a list of all
    kernels' names; None if there are fewer than two updates."""
    updates = [place for place, name in enumerate(names) if any(word in name.lower() for word in UPDATES)]
    ends = [place for place, after in zip(updates, [*updates[1:], len(names) + BETWEEN_STEPS]) if after - place >= BETWEEN_STEPS]
    return (ends[-2] + 1, ends[-1], ends[-2]) if len(ends) >= 2 else None


def last_step(names, kernels):
    """Returns the kernels of the last step, and the nanoseconds from the end of the preceding update to the end of its own."""
    places = find_last_step([names[kernel.number] for kernel in kernels])
    if places is None:
        raise SystemExit("kernel_times: the file has fewer than two optimizer updates; train for some steps")
    first, last, before = places
    return kernels[first : last + 1], kernels[last].end - kernels[before].end


def classify(name):
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
    parser.add_argument("--kernels", type=int, default=20, help="number of longest kernels to list")
    arguments = parser.parse_args()
    names, kernels = read(arguments.times)
    step, wall = last_step(names, kernels)
    by_kind, by_name = defaultdict(lambda: [0, 0]), defaultdict(lambda: [0, 0])
    for kernel in step:
        name = names[kernel.number]
        for sums, key in ((by_kind, classify(name)), (by_name, short(name))):
            sums[key][0] += 1
            sums[key][1] += kernel.end - kernel.start
    busy = sum(kernel.end - kernel.start for kernel in step)
    print(f"A step of {wall / 1e6:.1f} ms: {len(step):,} kernels, which run for {busy / 1e6:.1f} ms.")

    def longest(sums):
        return sorted(sums.items(), key=lambda item: -item[1][1])

    table("what", longest(by_kind), wall)
    table("kernel", longest(by_name)[: arguments.kernels], wall)


if __name__ == "__main__":
    main()
