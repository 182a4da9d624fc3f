"""Measures how many injected faults the tests of train, planner and engine detect (docs/contributing/testing.md).

    python3 -m venv build/mutants-venv && build/mutants-venv/bin/pip install clang==14.0
    PYTHONPATH=scripts build/mutants-venv/bin/python -m mutants make      samples and builds the mutants
    PYTHONPATH=scripts build/mutants-venv/bin/python -m mutants run       runs the tests that reach them
    PYTHONPATH=scripts build/mutants-venv/bin/python -m mutants run --survivors    runs only undetected ones
    PYTHONPATH=scripts build/mutants-venv/bin/python -m mutants report    prints the tables of docs/contributing/testing.md

All files are in build/mutants. clang's Python package must have the version of the installed libclang.
"""

import argparse
import collections
import json
import pathlib
import sys

import clang.cindex

from . import build as building
from . import measure

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "mutants"


def read(name, otherwise):
    path = BUILD / name
    return json.loads(path.read_text()) if path.exists() else otherwise


def write(name, value):
    (BUILD / name).write_text(json.dumps(value, indent=1) + "\n")


def find_part(mutant):
    return mutant["path"].split("/")[1]


def identity(mutant):
    return json.dumps({name: value for name, value in mutant.items() if name != "number"})


def make(arguments):
    clang.cindex.Config.set_library_file(arguments.libclang)
    before = {identity(mutant): mutant["number"] for mutant in read("mutants.json", [])}
    after = building.make(ROOT, BUILD, arguments.count, arguments.seed, arguments.jobs, find_programs(arguments))
    # Results of mutants that still exist are kept; `run --survivors` repeats undetected ones.
    numbers = {before[identity(mutant)]: mutant["number"] for mutant in after if identity(mutant) in before}
    results = read("results.json", {})
    write("results.json", {str(new): results[str(old)] for old, new in numbers.items() if str(old) in results})
    coverage = read("coverage.json", {})
    affected_parts = {find_part(mutant) for mutant in after if identity(mutant) not in before}
    for program in list(coverage):
        if any(building.PROGRAMS[part] == program for part in affected_parts) or program not in building.PROGRAMS.values():
            del coverage[program]
            continue
        for result in coverage[program].values():
            result["reached"] = sorted(numbers[old] for old in result["reached"] if old in numbers)
    write("coverage.json", coverage)


def find_programs(arguments):
    return [*building.PROGRAMS.values(), *arguments.also]


def run(arguments):
    mutants = read("mutants.json", [])
    coverage = read("coverage.json", {})
    results = read("results.json", {})
    if arguments.fresh:
        coverage = {name: {test: result for test, result in tests.items() if not any(w in test for w in arguments.fresh)}
                    for name, tests in coverage.items()}
    names = arguments.programs or list(building.PROGRAMS.values())
    programs = {name: measure.Program(str(BUILD / "tests" / name)) for name in names}
    for name, program in programs.items():
        coverage[name] = measure.cover(program, arguments.jobs, coverage.get(name, {}), arguments.filter)
        write("coverage.json", coverage)
        failing = [test for test, result in coverage[name].items() if not result["passes"]]
        print(f"{name}: {len(coverage[name])} tests in {sum(t['seconds'] for t in coverage[name].values()):.0f} s"
              + (f"; fail without a mutant: {', '.join(failing)}" if failing else ""), flush=True)

    selected = {name: {test: coverage[name][test] for test in program.tests(arguments.filter)}
              for name, program in programs.items()}

    def save(mutant, program, what):
        if what == "" and arguments.filter != "*":
            what = False  # not by these tests
        result = results.setdefault(str(mutant["number"]), {})
        result[program.name] = what
        write("results.json", results)
        verdict = {None: "not reached", False: "not yet caught", "": "SURVIVES"}.get(what, what)
        print(f"{mutant['number']:4} {mutant['path']}:{mutant['line']} {program.name}: {verdict}", flush=True)

    hunts = []
    for mutant in mutants:
        number = mutant["number"]
        known = results.get(str(number), {})
        if (arguments.numbers and number not in arguments.numbers) or any(known.values()):
            continue
        for name in names:
            belongs = name == building.PROGRAMS[find_part(mutant)] or name not in building.PROGRAMS.values()
            if belongs and (arguments.survivors or name not in known):
                hunts.append((mutant, programs[name], selected[name]))
    measure.hunt_all(hunts, arguments.jobs, arguments.budget, save)
    report(arguments)


def shown(text, most=90):
    text = text.replace("|", "\\|")
    return f"`{text}`" if len(text) <= most else f"`{text[:most]} …`"


def find_change(mutant):
    before, after = mutant["before"], mutant["after"]
    if mutant["kind"] == "constant":
        return f"{before.split(' in `')[0]} → {after} in {shown(before.split(' in `')[1].removesuffix('`'))}"
    if not after:
        return f"without {shown(before)}"
    if mutant["kind"] == "operator":
        return f"{shown(before, 60)} → {shown(after, 60)}"
    return shown(before) if mutant["kind"] == "condition" else f"{shown(before, 60)} → {shown(after, 40)}"


def report(arguments):
    mutants = read("mutants.json", [])
    results = read("results.json", {})
    counts = collections.defaultdict(collections.Counter)
    survivors, named = [], []
    for mutant in mutants:
        result = results.get(str(mutant["number"]), {})
        by_any = next(filter(None, result.values()), None)
        if mutant["kind"] == "named":
            named.append((mutant, by_any))
            continue
        for row in (find_part(mutant), "in all"):
            counts[row]["mutants"] += 1
            counts[row]["own"] += bool(result.get(building.PROGRAMS[find_part(mutant)]))
            counts[row]["any"] += bool(by_any)
        if not by_any:
            survivors.append((mutant, "not reached" if all(what is None for what in result.values()) else
                              "not all tests run" if False in result.values() else "survives"))
    print("\n| Part | mutants | caught by the part's own program | or by another |\n|---|---|---|---|")
    for row in (*building.PROGRAMS, "in all"):
        count = counts[row]
        shares = [f"{count[which]} ({100 * count[which] / max(1, count['mutants']):.1f} %)" for which in ("own", "any")]
        print(f"| {row} | {count['mutants']} | {shares[0]} | {shares[1]} |")
    print("\n| Where | kind | change | |\n|---|---|---|---|")
    for mutant, verdict in survivors:
        print(f"| {mutant['number']} `{mutant['path']}:{mutant['line']}` {mutant['function']} | {mutant['kind']} | "
              f"{find_change(mutant)} | {verdict} |")
    print("\n| Named | caught by |\n|---|---|")
    for mutant, by_any in named:
        print(f"| {mutant['after']} | {by_any} |")
    count = counts[arguments.part]
    share = 100 * count["own"] / max(1, count["mutants"])
    if share < arguments.least:
        sys.exit(f"mutants: {share:.1f} % of {arguments.part} are caught, fewer than {arguments.least:g} %")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["make", "run", "report"])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--libclang", default="/usr/lib/llvm-14/lib/libclang.so.1")
    parser.add_argument("--also", nargs="*", default=[], metavar="PROGRAM", help="make: other test programs to build")
    parser.add_argument("--programs", nargs="*", help="run: programs to use instead of the parts' own")
    parser.add_argument("--filter", default="*", help="run: only these tests, as a --gtest_filter")
    parser.add_argument("--numbers", nargs="*", type=int, help="run: these mutants")
    parser.add_argument("--budget", type=float, default=0, help="run: seconds of tests per mutant; 0: all tests that reach it")
    parser.add_argument("--survivors", action="store_true", help="run: only mutants that no test caught")
    parser.add_argument("--part", default="in all", help="report: the part that --least is for")
    parser.add_argument("--least", type=float, default=0, metavar="PERCENT", help="report: exit 1 if fewer are caught by the part's program")
    parser.add_argument("--fresh", nargs="*", metavar="WORD", help="run: measure the coverage of tests with these words again")
    arguments = parser.parse_args()
    {"make": make, "run": run, "report": report}[arguments.command](arguments)


main()
