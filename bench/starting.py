#!/usr/bin/env python3
"""Compares the wall times of short commands of two builds: medians, alternating between the builds.

    bench/starting.py OLD NEW [--runs 20] [--plans 5]     two executables; no other work should run on the machine
"""
import argparse
import os
import statistics
import subprocess
import time

SHORT = {"--version": ["--version"], "--help": ["--help"], "plan --help": ["plan", "--help"], "options": ["options"],
         "a wrong flag": ["plan", "--gpu-bg", "24"], "a wrong key": ["plan", "--gpu-gb", "24", "training.max_stepz=1"]}
PLAN = ["plan", "--gpu-gb", "24", "--images", "2"]


def measure_seconds(program, words):
    start = time.perf_counter()
    subprocess.run([program, *words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                   env={**os.environ, "VLMTRAIN_PAST_RUNS": "off"})
    return time.perf_counter() - start


def medians(programs, words, runs):
    times = {program: [] for program in programs}
    for run in range(runs + 1):
        for program in programs:
            seconds = measure_seconds(program, words)
            if run > 0:  # the first run reads files into the page cache
                times[program].append(seconds)
    return [statistics.median(times[program]) for program in programs]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--plans", type=int, default=5, help="number of runs of a whole plan")
    arguments = parser.parse_args()
    print("| command | old ms | new ms |\n|---|---|---|")
    for name, words, runs in [*((name, words, arguments.runs) for name, words in SHORT.items()), (" ".join(PLAN), PLAN, arguments.plans)]:
        old, new = medians([os.path.abspath(arguments.old), os.path.abspath(arguments.new)], words, runs)
        print(f"| `{name}` | {1000 * old:.0f} | {1000 * new:.0f} |" if name[0] != "a" else f"| {name} | {1000 * old:.0f} | {1000 * new:.0f} |", flush=True)


if __name__ == "__main__":
    main()
