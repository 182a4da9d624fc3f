"""Finds the tests that catch each mutant."""

import concurrent.futures
import json
import os
import re
import signal
import subprocess
import tempfile
import threading
import time

#: Tests shorter than this are run in one process: most of their time is loading LibTorch.
SHORT_SECONDS = 3.0


class Program:
    def __init__(self, path, environment=None):
        self.path = path
        self.environment = dict(os.environ, OMP_WAIT_POLICY="passive", OMP_NUM_THREADS="1", **(environment or {}))
        self.name = os.path.basename(path)

    def tests(self, pattern="*"):
        out = subprocess.run([self.path, "--gtest_list_tests", "--gtest_filter=" + pattern], env=self.environment, check=True, capture_output=True,
                             text=True).stdout
        suite, names = "", []
        for line in out.splitlines():
            if line.startswith("  "):
                names.append(suite + line.split("#")[0].strip())
            elif re.match(r"[\w/]+\.", line):
                suite = line.split("#")[0].strip()
        return [name for name in names if "DISABLED_" not in name]

    def run(self, names, limit_seconds, **environment):
        """Returns the exit status (None after a timeout), the seconds and the output."""
        start = time.monotonic()
        with tempfile.TemporaryFile("w+", errors="replace") as output:
            process = subprocess.Popen([self.path, "--gtest_filter=" + ":".join(names), "--gtest_fail_fast"],
                                       env=dict(self.environment, **environment), stdin=subprocess.DEVNULL,
                                       stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
            try:
                status = process.wait(timeout=limit_seconds)
            except subprocess.TimeoutExpired:
                status = None
            # Also kills its children.
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
            output.seek(0)
            return status, time.monotonic() - start, output.read()


def cover(program, jobs, known, pattern="*"):
    """Returns for each test its seconds, whether it passes, and the mutants that it reaches. `known`: results of an earlier run."""
    def one(name):
        if name in known:
            return name, known[name]
        with tempfile.NamedTemporaryFile("r") as record:
            status, seconds, _ = program.run([name], 600, VLMTRAIN_MUTANT_RECORD=record.name)
            reached = sorted({int(line) for line in record})
        return name, {"seconds": round(seconds, 2), "passes": status == 0, "reached": reached}

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        return {**known, **dict(pool.map(one, program.tests(pattern)))}


def _find_catching_tests(status, output, names):
    if status is None:
        return "hang in " + (re.findall(r"\[ RUN      \] (\S+)", output) or names)[-1]
    failed = re.findall(r"\[  FAILED  \] ([\w./]+)", output)
    if failed:
        return failed[0]
    return f"crash ({status}) in " + (re.findall(r"\[ RUN      \] (\S+)", output) or names)[-1]


def hunt(program, coverage, number, budget_seconds):
    """Returns the name of a test that catches a mutant; "" if none does; None if no test reaches it; False if none did among tests
    that take `budget_seconds` together without a mutant."""
    tests = sorted((test["seconds"], name) for name, test in coverage.items() if test["passes"] and number in test["reached"])
    if not tests:
        return None
    short = [name for seconds, name in tests if seconds < SHORT_SECONDS]
    groups = [(sum(s for s, name in tests if name in set(selected)), selected)
              for selected in [short[:4], *(short[i : i + 40] for i in range(4, len(short), 40))] if selected]
    groups += [(seconds, [name]) for seconds, name in tests if seconds >= SHORT_SECONDS]
    spent = 0
    for seconds, names in groups:
        spent += seconds
        if budget_seconds and spent > budget_seconds and names is not groups[0][1]:
            return False
        status, _, output = program.run(names, 5 * seconds + 20, VLMTRAIN_MUTANT=str(number))
        if status != 0:
            return _find_catching_tests(status, output, names)
    return ""


def hunt_all(hunts, jobs, budget_seconds, save):
    """Runs `hunts`: (mutant, program, coverage). Calls save(mutant, result) after each."""
    lock = threading.Lock()

    def one(hunt_):
        mutant, program, coverage = hunt_
        what = hunt(program, coverage, mutant["number"], budget_seconds)
        with lock:
            save(mutant, program, what)

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, hunts))
