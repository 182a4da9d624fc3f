"""Runs programs within a time budget."""

import contextlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass


# Plans are compared with measurements, so they must not use earlier measurements.
LEARNS_NOTHING = {"VLMTRAIN_PAST_RUNS": "off"}


class OutOfTime(Exception):
    """Raised if the part's time budget is used up."""


class Clock:
    def __init__(self, seconds):
        self.ends = time.monotonic() + seconds

    def remaining(self):
        return self.ends - time.monotonic()


@dataclass
class Ended:
    code: int
    out: str
    err: str
    seconds: float

    def reason(self):
        """Returns the last error line of the output, else its last line."""
        lines = [line for line in (self.err + "\n" + self.out).strip().splitlines() if line.strip()]
        errors = [line for line in self.err.strip().splitlines() if "error" in line.lower()]
        return (errors or lines or ["no output"])[-1][:400]


RUNNING = set()  # process groups, which end_all kills


def kill_group(process):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def end_all():
    """Kills all running programs and their children."""
    for process in list(RUNNING):
        kill_group(process)


def run(command, clock, environment=None, while_running=None):
    """Runs a program and returns its Ended. At the end of the budget, kills it with its children and raises OutOfTime.
    `while_running` is called with the started process."""
    began = time.monotonic()
    if clock.remaining() <= 0:
        raise OutOfTime
    process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True,
                               env={**os.environ, **LEARNS_NOTHING, **(environment or {})})
    RUNNING.add(process)
    watcher = while_running(process) if while_running else None
    try:
        out, err = process.communicate(timeout=clock.remaining())
    except subprocess.TimeoutExpired:
        raise OutOfTime from None
    finally:
        if process.poll() is None:
            kill_group(process)
            process.communicate()
        RUNNING.discard(process)
        if watcher:
            watcher.finish()
    return Ended(process.returncode, out, err, time.monotonic() - began)
