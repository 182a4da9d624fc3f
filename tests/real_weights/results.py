"""Results of checks: a line of JSON each, as soon as it is known."""

import json
import os
import time

import bench  # noqa: F401 — it makes the harness of the GPU queue importable
from harness.results import FAILED, MEASURED, PASSED, SKIPPED, Outcome, measured, skipped  # noqa: F401


def judged(holds, text, **figures):
    return Outcome(PASSED if holds else FAILED, text, figures)


class Results:
    """Appends to a file of JSON lines and prints each line."""

    def __init__(self, path, identity):
        self.path, self.identity, self.lines = path, identity, []

    def add(self, check, outcome, seconds):
        line = {"check": check, "state": outcome.state, "text": outcome.text, "figures": outcome.figures,
                "seconds": round(seconds, 1), "time": time.time(), **self.identity}
        self.lines.append(line)
        print(json.dumps(line), flush=True)
        if self.path:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "a") as file:
                file.write(json.dumps(line) + "\n")
                file.flush()
                os.fsync(file.fileno())

    def count(self, state):
        return sum(line["state"] == state for line in self.lines)


def read_done(path, identity):
    """The newest line of each check for this program and device."""
    if not path or not path.exists():
        return {}
    done = {}
    for line in path.read_text().splitlines():
        try:
            line = json.loads(line)
        except json.JSONDecodeError:
            continue  # the last line of a call that was killed
        if all(line.get(key, []) == value for key, value in identity.items()):
            done[line["check"]] = line
    return done
