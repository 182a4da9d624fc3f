"""Runs the measurements that need a GPU, those that are missing or stale first. docs/contributing/gpu-queue.md

    scripts/gpu_queue.sh list                        entries, their state and seconds; names: their names alone
    scripts/gpu_queue.sh pack [ENTRY …]              here: reduces the checkout, prepares gpu-queue/call-N, prints sizes and calls
    scripts/gpu_queue.sh run --seconds 540           on the GPU machine: runs due entries; `run` is the default command
    scripts/gpu_queue.sh keep                        there: keeps carried folders for a later call
    scripts/gpu_queue.sh unpack                      here: restores the checkout
    scripts/gpu_queue.sh collect ARCHIVE             here: adds the results to docs/benchmarks/gpu
    scripts/gpu_queue.sh render                      prints all results in docs/benchmarks/gpu as Markdown
    scripts/gpu_queue.sh self-test                   injects faults into the checks of values, on the CPU

--dry runs entries on a virtual GPU or the CPU and discards the results. Exit codes: 0 nothing failed; 1 a check failed; 2 wrong usage; 3 nothing
failed, but entries remain.
"""

import argparse
import json
import os
import signal
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import carried
import pack
import packages
import page
import programs
import runner
from entries import ENTRIES
from harness import inputs, program, results
from harness.bench import Bench
from runner import say
from carried import KEPT
from state import DONE, RESULTS, Queue, check_result, is_complete, num_final_checks, read_result

HOURS = 24 * 3600
STARTED = time.monotonic()


def read_arguments():
    parser = argparse.ArgumentParser(prog="gpu_queue.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="COMMAND", help="a command, then entries by name; default: run, and all entries")
    parser.add_argument("--dry", action="store_true", help="run on a virtual GPU or the CPU; discard the results")
    parser.add_argument("--seconds", type=float, default=HOURS, help="budget; entries that do not fit remain")
    parser.add_argument("--device", help="cuda, cuda:N, virtual:NAME or cpu; default: cuda, with --dry what each entry names")
    parser.add_argument("--out", type=Path, default=KEPT / "results", help=f"folder of results, which later calls continue; default: {KEPT}/results")
    parser.add_argument("--archive", type=Path, help=f"file for all results together, rewritten after every entry; default: OUT/{runner.ARCHIVE}")
    parser.add_argument("--work", type=Path, help="folder of checkpoints and runs, up to 40 GB; default: a temporary one that remains")
    parser.add_argument("--vlmtrain", type=Path, help="default: the carried portable/vlmtrain, else build/release/vlmtrain")
    parser.add_argument("--gpu-tests", type=Path, help="default: gpu_tests next to vlmtrain, or in tests/ there")
    parser.add_argument("--libtorch", type=Path, help="LibTorch's folder, for a portable program; default: that of this Python")
    parser.add_argument("--only", default="", metavar="TEXT", help="only checks whose names contain this")
    parser.add_argument("--again", action="store_true", help="run entries that are done, and finished checks")
    parser.add_argument("--no-build", action="store_true", help="pack: use the programs in build/gpu-queue/portable")
    arguments = parser.parse_intermixed_args()
    if not arguments.seconds > 0:
        parser.error(f"--seconds {arguments.seconds:g}: must be above 0")
    arguments.command = arguments.words.pop(0) if arguments.words and arguments.words[0] in ACTIONS else "run"
    if arguments.command == "collect":
        if len(arguments.words) != 1:
            parser.error("collect takes the archive of results, or the folder that has it")
        return arguments, parser
    known = {entry.name: entry for entry in ENTRIES}
    for name in arguments.words:
        if name not in known:
            parser.error(f"{name}: is not a command or an entry; the entries are {', '.join(known)}")
    arguments.entries = [known[name] for name in arguments.words]
    return arguments, parser


def packed_state():
    """Unpacks this call's folders. Returns the state that `pack` wrote, unless this is the checkout where it ran."""
    if pack.STAGE.exists():  # ignored by git, so that copies lack it; some copies have a folder .git
        return None
    calls = sorted(carried.CALLS.glob("call-*/queue.json"))
    if not calls:
        return None
    carried.receive()
    return json.loads(calls[-1].read_text())


def make_bench(arguments, device, out):
    arguments.vlmtrain = (arguments.vlmtrain or programs.default_program()).absolute()
    if not hasattr(arguments, "version"):
        arguments.version = programs.start(arguments.vlmtrain, arguments.libtorch)
    out.mkdir(parents=True, exist_ok=True)
    work = arguments.work or KEPT / "work"
    bench = Bench(arguments.vlmtrain, device, work.absolute(), programs.find_gpu_tests(arguments.vlmtrain, arguments.gpu_tests),
                  arguments.version, KEPT / "carried", out.absolute())
    bench.work.mkdir(parents=True, exist_ok=True)
    bench.clock = program.Clock(300)
    programs.check_device(bench)
    return bench


def finish(arguments, parser, done, remains):
    if arguments.only and not done and not remains:
        parser.error(f"--only {arguments.only}: no due check has this in its name; results in OUT list the checks, and --again repeats them")
    failures = [(result, check) for result in done for check in result["checks"] if check["state"] == results.FAILED]
    states = [check["state"] for result in done for check in result["checks"]]
    say("\n" + (", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)) or "no check was run"))
    for result, check in failures:
        say(f"to fix: {result['entry']}: {check['name']}: {check['text']}\n        look at {check['fix']}")
    if remains:
        say("Entries remain: run the queue again.")
    return 1 if failures else 3 if remains else 0


def run(arguments, parser):
    device = arguments.device or "cuda"
    queue = Queue(ENTRIES, packed=packed_state(), newer=arguments.out, device=device)
    entries = (arguments.entries or ENTRIES) if arguments.again else [entry for entry in queue.due()
                                                                      if not arguments.entries or entry in arguments.entries]
    if not entries:
        say("No entry is due; --again repeats them.")
        return 0
    bench = make_bench(arguments, device, arguments.out)
    runner.set_log_file(bench.attach("log.txt"))
    archive = arguments.archive or arguments.out / runner.ARCHIVE
    archive.parent.mkdir(parents=True, exist_ok=True)
    machine = programs.describe_machine(device)
    say(f"{arguments.version} on {machine['gpu']}")
    seconds = arguments.seconds - (time.monotonic() - STARTED)
    return finish(arguments, parser, *runner.run_queue(queue, entries, bench, machine, seconds, archive, arguments.again, arguments.only))


def dry(arguments, parser):
    """Runs each entry without a GPU: it must complete, and its checks must not fail."""
    done, remains, ends, benches = [], False, time.monotonic() + arguments.seconds, {}
    with tempfile.TemporaryDirectory() as folder:
        arguments.work = arguments.work or Path(folder) / "work"
        for entry in arguments.entries or ENTRIES:
            remaining = ends - time.monotonic()
            if remaining <= 0:
                remains = True
                break
            device = arguments.device or entry.dry_device
            if device not in benches:
                benches[device] = make_bench(arguments, device, Path(folder) / "out")
            bench = benches[device]
            if reason := entry.unusable(bench):
                say(f"== {entry.name}: skipped, {reason}")
                continue
            if not any(arguments.only in check.name for check in entry.checks(bench)):
                continue
            say(f"== {entry.name} on {bench.device}: {entry.title}")
            result = runner.run_entry(entry, bench, programs.describe_machine(bench.device), "dry", remaining, only=arguments.only)
            say(f"   {result['seconds']:.0f} s")
            done.append(result)
            remains = remains or not result["complete"]
    return finish(arguments, parser, done, remains)


def list_entries(arguments, _):
    queue = Queue(ENTRIES, packed=packed_state(), newer=arguments.out)
    for entry in ENTRIES:
        result = queue.results[entry.name]
        latest = f"{result['gpu']}, {result['date']}, {result['commit']}" if result else ""
        say(f"{entry.name:<26} {entry.seconds:>4} s  {queue.states[entry.name]:<15} {latest}")
    due = queue.due()
    say(f"{len(due)} of {len(ENTRIES)} due, about {sum(entry.seconds for entry in due)} s")
    return 0


def print_names(*_):
    for entry in ENTRIES:
        say(entry.name)
    return 0


def pack_queue(arguments, _):
    queue = Queue(ENTRIES)
    entries = arguments.entries or [entry for entry in ENTRIES if queue.states[entry.name] != DONE]
    names = pack.find_folders(entries)
    pack.build(names, not arguments.no_build)
    pack.reduce_checkout(names)
    say("\n".join(pack.write_calls(names, queue)))
    return 0


def keep(*_):
    """Moves this call's folders out of the checkout, where the next call would replace them."""
    say("kept: " + (", ".join(carried.receive()) or "pieces only"))
    return 0


def unpack(*_):
    pack.restore_checkout()
    return 0


def render(*_):
    print(page.render(ENTRIES))
    return 0


def collect(arguments, parser):
    source = Path(arguments.words[0])
    archive = source / runner.ARCHIVE if source.is_dir() else source
    if not archive.exists():
        parser.error(f"{archive}: does not exist; collect takes the folder that --out named, or {runner.ARCHIVE} of it")
    try:
        calls = read_archive(archive)
    except (OSError, EOFError, tarfile.TarError, ValueError) as error:
        parser.error(f"{archive}: {error}; nothing was collected")
    if not calls:
        parser.error(f"{archive}: has no result of an entry; collect takes what `run` wrote")
    RESULTS.mkdir(exist_ok=True)
    for name, (content, result) in calls.items():
        present = read_result(RESULTS, name)
        if not result["device"].startswith("cuda"):
            say(f"skipped {name}: it is a result of {result['gpu']}, not of a GPU")
        elif present and has_more(present, result):
            say(f"skipped {name}: docs/benchmarks/gpu has more finished checks")
        else:
            (RESULTS / f"{name}.json").write_bytes(content)
            say(f"collected {name}: {page.summary(result)}")
    return 0


def has_more(present, result):
    """Returns whether `present` should be kept: it is complete or has more finished checks, and `result` is incomplete."""
    return not is_complete(result) and (is_complete(present) or num_final_checks(present) > num_final_checks(result))


def read_archive(path):
    """Returns content and value of each result in an archive, by entry. Raises if one of them is invalid."""
    calls = {}
    names = {f"{entry.name}.json": entry.name for entry in ENTRIES}
    with tarfile.open(path) as opened:
        for member in opened.getmembers():
            name = names.get(member.name.removeprefix("./"))
            if name is None:
                continue
            if not member.isfile():
                raise ValueError(f"{member.name} is not a file")
            content = opened.extractfile(member).read()
            try:
                result = json.loads(content)
                check_result(name, result)
            except ValueError as error:
                raise ValueError(f"{member.name}: {error}") from None
            calls[name] = content, result
    return calls


def self_test(arguments, _):
    """Injects each fault of each check of values on the CPU: the check must fail, and pass without it."""
    bench = make_bench(arguments, "cpu", arguments.out)
    bad = count = 0
    for entry in arguments.entries or ENTRIES:
        for check in entry.checks(bench):
            if not check.faults or arguments.only not in check.name:
                continue
            for name, fault in [("nothing planted", {}), *check.faults.items()]:
                bench.fault, bench.clock = fault, program.Clock(300)
                outcome = runner.describe_outcome(check, bench)
                expected = results.FAILED if fault else results.PASSED
                right = outcome.state in (expected, results.SKIPPED)
                count += 1
                bad += not right
                say(f"   {'passed' if right else 'FAILED':>11}  {check.name}, {name}: {outcome.state}: {outcome.text}")
    say(f"\n{count} faults and controls, {bad} not as expected")
    return 1 if bad else 0


ACTIONS = {"list": list_entries, "names": print_names, "pack": pack_queue, "run": run, "keep": keep, "unpack": unpack,
           "collect": collect, "render": render, "self-test": self_test}


def stop(number, _):
    """Kills running programs before the queue ends, so that none keeps the GPU."""
    program.end_all()
    os._exit(128 + number)


def main():
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    arguments, parser = read_arguments()
    action = dry if arguments.command == "run" and arguments.dry else ACTIONS[arguments.command]
    try:
        return action(arguments, parser)
    except (programs.Unusable, pack.PackFailed, packages.DownloadFailed) as error:
        print(f"gpu_queue: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
