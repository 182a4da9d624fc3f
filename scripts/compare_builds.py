#!/usr/bin/env python3
"""Compares two builds of vlmtrain: losses and weights bit for bit, plans, memory and kernel launches.

    python3 scripts/compare_builds.py OLD_VLMTRAIN NEW_VLMTRAIN --out DIR [--only REGEX] [--jobs N]

Runs short trainings on the CPU, plans for several GPUs and trainings on virtual GPUs with both builds on the same inputs: tiny
checkpoints (`vlmtrain init`) and synthetic images, created in DIR/inputs. The outcome of a case is DIR/old/CASE.json and
DIR/new/CASE.json, without times and host memory; the two must be equal. Prints a table with a row per case and its differences
(complete in DIR/differences.txt); exit code 1 if any case differs. A later call with the same DIR can pass DIR/old as
OLD_VLMTRAIN; it reuses the outcomes of the old build.

scripts/compare_builds/renames.tsv (--renames) maps the names of JSON fields, config keys and kernels that the new build writes
differently. It is one-to-one and applied to the old build only. Texts such as messages of events may be worded differently; the
numbers in them must be equal (TEXTS in scripts/compare_builds/differences.py).

Launches need builds whose virtual GPUs support VLMTRAIN_VGPU_TRACE (docs/explanation/virtual-gpu.md).
"""

import argparse
import concurrent.futures
import json
import re
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "compare_builds"))

import cases  # noqa: E402
import differences  # noqa: E402
import material  # noqa: E402
import renames  # noqa: E402
import runs  # noqa: E402

FAILED = "failed"
SHOWN = 3  # maximum number of differences of a case in the table


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, help="an executable, or DIR/old of an earlier call")
    parser.add_argument("new", type=Path, help="an executable")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--only", default="", metavar="REGEX", help="only cases whose names match this regular expression")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="number of concurrent runs (default: %(default)s)")
    parser.add_argument("--renames", type=Path, default=renames.TABLE, metavar="FILE",
                        help="table of old and new names (default: scripts/compare_builds/renames.tsv)")
    parser.add_argument("--list", action="store_true", help="print the names of the cases and exit")
    return parser.parse_args()


def outcome_file(folder, case):
    return folder / f"{case.name.replace('/', '-')}.json"


def compared(old, new, table):
    """Returns the differences of a case; a case that fails on either side is never equal."""
    failed = [f"the {name} build failed: {outcome[FAILED]}" for name, outcome in (("old", old), ("new", new)) if FAILED in outcome]
    return failed or differences.between(renames.apply(old, table), new)


def side(name, vlmtrain, out):
    """Returns a function from a case to its outcome on this side."""
    folder = out / name
    if vlmtrain.is_dir():
        return lambda case: json.loads(outcome_file(vlmtrain, case).read_text())
    program = runs.Program(vlmtrain.resolve(), folder)

    def outcome(case):
        try:
            actual = json.loads(json.dumps(case.outcome(program)))
        except runs.Failed as error:
            actual = {FAILED: str(error)}
        outcome_file(folder, case).write_text(json.dumps(actual, indent=1) + "\n")
        return actual

    return outcome


def main():
    options = arguments()
    selected = [case for case in cases.all_cases() if re.search(options.only, case.name)]
    if options.list or not selected:
        print("\n".join(case.name for case in selected) or f"no case matches {options.only}")
        return 0 if selected else 2
    try:
        table = renames.load(options.renames)
    except (OSError, ValueError, renames.NotOneToOne) as error:
        print(f"compare_builds: {error}", file=sys.stderr)
        return 2
    began = time.monotonic()
    out = options.out.resolve()
    material.make((options.new if options.old.is_dir() else options.old).resolve(), out / "inputs")
    sides = [side("old", options.old, out), side("new", options.new, out)]
    print("| case | |\n|---|---|", flush=True)
    differing, report = 0, []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        futures = [(case, [pool.submit(one, case) for one in sides]) for case in selected]
        for case, (old, new) in futures:
            lines = compared(old.result(), new.result(), table)
            differing += bool(lines)
            report += [f"{case.name}: {line}" for line in lines]
            more = f"; … and {len(lines) - SHOWN} more" if len(lines) > SHOWN else ""
            print(f"| {case.name} | {'; '.join(lines[:SHOWN]) + more if lines else 'equal'} |", flush=True)
    (out / "differences.txt").write_text("".join(line + "\n" for line in report))
    print(f"\n{len(selected) - differing} of {len(selected)} cases equal, {differing} not, in {time.monotonic() - began:.0f} s")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
