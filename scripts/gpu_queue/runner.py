"""Runs entries within a time budget. Every outcome is written to disk before the next check starts."""

import json
import os
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from threading import Lock

from harness import program, results
from harness.bench import RunFailed

ARCHIVE = "gpu-queue-results.tar.gz"
# A GPU machine returns files of at most 16 MiB.
ARCHIVE_BYTES = 15 * 2 ** 20
# Time limit of a hanging check, as a multiple of its seconds on an H200.
PATIENCE = 2.5


LOG = None


def set_log_file(path):
    """Also appends everything that `say` prints to a file."""
    global LOG
    LOG = open(path, "a")


def say(text):
    print(text, flush=True)
    if LOG:
        print(text, file=LOG, flush=True)


def describe_outcome(check, bench):
    """Runs one check. An exception in a check does not end the queue."""
    try:
        return check.do(bench)
    except program.OutOfTime:
        return results.Outcome(results.CUT, "ended by the time limit; run the queue again")
    except RunFailed as error:
        return results.failed(str(error), "the run itself: repeat its command by hand")
    except Exception as error:
        return results.failed(f"{type(error).__name__}: {error}", "scripts/gpu_queue, or a file that the program did not write")


class EntryRun:
    """The growing result of an entry."""

    def __init__(self, entry, bench, machine, commit, finished):
        self.entry, self.bench = entry, bench
        self.result = {"entry": entry.name, "title": entry.title, "shows": entry.shows, "commit": commit,
                       "date": time.strftime("%Y-%m-%d", time.gmtime()), **machine, "device": bench.device,
                       "seconds": 0.0, "complete": False, "checks": list(finished)}
        self.began = time.monotonic()
        self.lock = Lock()

    def add(self, check, outcome, seconds):
        line = {"name": check.name, **asdict(outcome), "seconds": round(seconds, 2)}
        with self.lock:
            self.result["checks"].append(line)
            self.write()
        say(f"   {outcome.state:>11}  {check.name} ({seconds:.1f} s): {outcome.text}")

    def write(self):
        self.result["seconds"] = round(time.monotonic() - self.began, 1)
        path = self.bench.out / f"{self.entry.name}.json"
        partial = path.with_suffix(".partial")
        with open(partial, "w") as file:
            file.write(json.dumps(self.result, indent=1, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)

    def states(self):
        return [check["state"] for check in self.result["checks"]]


def run_entry(entry, bench, machine, commit, seconds_left, finished=(), only=""):
    """Runs the checks of one entry that are not finished. Returns its result."""
    run = EntryRun(entry, bench, machine, commit, finished)
    names = {check["name"] for check in finished}
    bench.clock = program.Clock(min(seconds_left, PATIENCE * entry.seconds))
    bench.threads = max(1, (os.cpu_count() or 1) // entry.jobs) if entry.jobs > 1 else None

    def do(check):
        began = time.monotonic()
        if bench.clock.remaining() < check.seconds:
            outcome = results.Outcome(results.CUT, f"not started: {bench.clock.remaining():.0f} s remained of {check.seconds:.0f}; run the queue again")
        else:
            outcome = describe_outcome(check, bench)
        run.add(check, outcome, time.monotonic() - began)

    all_checks = entry.checks(bench)
    selected = [check for check in all_checks if check.name not in names and only in check.name]
    with ThreadPoolExecutor(entry.jobs) as pool:
        list(pool.map(do, selected))
    run.result["complete"] = len(run.result["checks"]) == len(all_checks) and results.CUT not in run.states()
    run.write()
    return run.result


def write_archive(out, file):
    """Packs all results into one file. Without the attachments if it would exceed the limit otherwise."""
    partial = file.with_name(file.name + ".partial")
    with tarfile.open(partial, "w:gz") as archive:
        for path in sorted(out.glob("*.json")):
            archive.add(path, path.name)
        for path in sorted((out / "attachments").glob("*")):
            archive.add(path, f"attachments/{path.name}")
    if partial.stat().st_size > ARCHIVE_BYTES:
        say(f"gpu_queue: the attachments exceed {ARCHIVE_BYTES // 2 ** 20} MiB; {file.name} has only the results")
        with tarfile.open(partial, "w:gz") as archive:
            for path in sorted(out.glob("*.json")):
                archive.add(path, path.name)
    partial.replace(file)


def run_queue(queue, entries, bench, machine, seconds, archive, again=False, only=""):
    """Runs `entries` in order until the time is up. Returns the results and whether entries remain."""
    deadline = program.Clock(seconds)
    done, remains = [], False
    for entry in entries:
        if reason := entry.unusable(bench):
            say(f"== {entry.name}: skipped, {reason}")
            continue
        finished = [check for check in queue.finished_checks(entry, machine["gpu"]) if not again or only not in check["name"]]
        names = {check["name"] for check in finished}
        first = next((check for check in entry.checks(bench) if check.name not in names and only in check.name), None)
        if first is None and only:
            continue
        if first is not None and deadline.remaining() < first.seconds:
            say(f"== {entry.name}: not started, {deadline.remaining():.0f} s remain")
            remains = True
            continue
        say(f"== {entry.name}: {entry.title} (about {entry.seconds} s; {deadline.remaining():.0f} s remain)")
        result = run_entry(entry, bench, machine, queue.commit, deadline.remaining(), finished, only)
        write_archive(bench.out, archive)
        done.append(result)
        remains = remains or not result["complete"]
    return done, remains
