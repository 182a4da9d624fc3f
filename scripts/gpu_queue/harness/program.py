"""Running programs within a time budget."""

import contextlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass


# Plans are held to what is measured: they must not have learnt from it.
LEARNS_NOTHING = {"VLMTRAIN_PAST_RUNS": "off"}


class OutOfTime(Exception):
    """The budget of the part is used up."""


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
        """The last thing that it said."""
        lines = [line for line in (self.err + "\n" + self.out).strip().splitlines() if line.strip()]
        errors = [line for line in self.err.strip().splitlines() if "error" in line.lower()]
        return (errors or lines or ["nothing was said"])[-1][:400]


RUNNING = set()  # process groups, which end_all kills


def kill_group(process):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def end_all():
    """Kills all programs that run, with everything that they started."""
    for process in list(RUNNING):
        kill_group(process)


def run(command, clock, environment=None, while_running=None):
    """Runs a program to its end, or to that of the budget: then it and all that it started are killed, and OutOfTime is raised.
    `while_running` gets the process after it was started."""
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
