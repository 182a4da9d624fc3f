"""Runs the checks that take too long for every change, in parts of at most an hour.

    scripts/nightly.sh                            every part without a valid result, in order
    scripts/nightly.sh --part NAME --seconds N    one part, for at most N seconds; the next call resumes it
    scripts/nightly.sh debug asan                 all parts whose names start like this
    scripts/nightly.sh --list                     the parts, the number of their steps and the paths that they cover
    scripts/nightly.sh --status                   for each part: passed, failed, stale or never; and whether all have passed

Steps that are done are in build/nightly/PART, with their logs. The result of a part, with its commit, is written to
docs/benchmarks/nightly/PART.json; commit it. A result is stale if `git diff COMMIT`
of the part's paths is not empty. VLMTRAIN_FUZZ_SECONDS: how long each fuzz target runs.

Exit codes: 0 all selected parts have passed; 1 one has failed, or --status: not all have passed; 2 usage error; 75 out of time, call again.
"""

import argparse
import sys
from pathlib import Path

from . import results
from . import runner
from .parts import all_parts

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 3600


def print_list(parts):
    for part in parts:
        print(f"{part.name:18} {len(part.steps):2} steps  {part.about}\n{'':18} {' '.join(part.paths)}")


def print_status(root, parts):
    """Returns whether all parts have passed."""
    status_by_part = {part.name: results.status(root, part) for part in parts}
    for part in parts:
        result = results.read_result(root, part)
        print(f"{part.name:18} {status_by_part[part.name]:7}" + (f" {result['date']} {result['commit'][:8]}" if result else ""))
    passed = sum(status == "passed" for status in status_by_part.values())
    whole = passed == len(parts)
    print(f"{passed} of {len(parts)} parts have passed, with no later change; the whole has {'' if whole else 'not '}passed")
    return whole


def select_parts(parts, names):
    """Returns the parts with these names, or with names that begin with one of them."""
    status_by_part = []
    for name in names:
        matching = [part for part in parts if part.name == name or part.name.startswith(name + "-")]
        if not matching:
            raise LookupError(f"{name}: no part has this name; --list prints all")
        status_by_part += [part for part in matching if part not in status_by_part]
    return status_by_part


def main():
    parser = argparse.ArgumentParser(prog="scripts/nightly.sh", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--part", action="append", default=[], metavar="NAME")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"for each part; default: {SECONDS}")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--status", action="store_true")
    arguments = parser.parse_args()

    parts = all_parts(ROOT)
    if arguments.list:
        return print_list(parts)
    if arguments.status and (arguments.names or arguments.part):
        parser.error("--status takes no names; it prints all parts")
    if arguments.status:
        return 0 if print_status(ROOT, parts) else 1
    names = [*arguments.part, *arguments.names]
    try:
        todo = select_parts(parts, names) if names else [part for part in parts if results.status(ROOT, part) != "passed"]
    except LookupError as error:
        parser.error(str(error))
    outcomes = {}
    for part in todo:
        outcomes[part.name] = runner.run(ROOT, part, parts, arguments.seconds)
    for name, outcome in outcomes.items():
        print(f"nightly: {name} {outcome}")
    if "failed" in outcomes.values():
        return 1
    return 75 if "unfinished" in outcomes.values() else 0


if __name__ == "__main__":
    sys.exit(main())
