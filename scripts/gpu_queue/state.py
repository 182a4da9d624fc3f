"""The state of each entry of the queue, from the results and from git."""

import json
import subprocess
from pathlib import Path

from harness import inputs
from harness.results import FINAL

RESULTS = inputs.ROOT / "docs" / "benchmarks" / "gpu"
NEVER, INCOMPLETE, STALE, DONE = "never measured", "incomplete", "stale", "done"


def git(*words):
    return subprocess.run(["git", "-C", inputs.ROOT, *words], capture_output=True, text=True)


def current_commit():
    """Returns the abbreviated commit of the checkout, with a plus if files differ from it; empty outside a repository."""
    commit = git("rev-parse", "--short=12", "HEAD")
    if commit.returncode != 0:
        return ""
    dirty = git("status", "--porcelain", "--untracked-files=no").stdout.strip()
    return commit.stdout.strip() + ("+" if dirty else "")


def read_result(folder, name):
    """Returns the JSON object of an entry, or None if it has no result."""
    path = Path(folder) / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def changed_paths(entry, commit):
    """Returns the files of the entry's paths that differ from a commit; None if git does not know the commit."""
    diff = git("diff", "--name-only", commit.rstrip("+"), "--", *entry.paths)
    return diff.stdout.split() if diff.returncode == 0 else None


def is_complete(result):
    return bool(result["checks"]) and result["complete"] and all(check["state"] in FINAL for check in result["checks"])


def state_of(entry, result):
    if result is None:
        return NEVER
    if changed_paths(entry, result["commit"]) != []:
        return STALE
    return DONE if is_complete(result) else INCOMPLETE


class Queue:
    """Which entries are due, in which order, and which checks of them remain.

    On a machine without the repository's history, `packed` has what `scripts/gpu_queue.sh pack` found: the commit and, for each
    entry, its state and its result if that is incomplete. `newer` is a folder of results that have not been collected;
    those of the same commit and `device` count.
    """

    def __init__(self, entries, folder=RESULTS, packed=None, newer=None, device="cuda"):
        self.entries = entries
        self.commit = packed["commit"] if packed else current_commit()
        self.states, self.results = {}, {}
        for entry in entries:
            known = packed["entries"].get(entry.name, {"state": NEVER, "result": None}) if packed else None
            result = known["result"] if packed else read_result(folder, entry.name)
            self.states[entry.name] = known["state"] if packed else state_of(entry, result)
            self.results[entry.name] = result
            running = read_result(newer, entry.name) if newer else None
            if running and (running["commit"], running["device"]) == (self.commit, device):
                self.results[entry.name] = running
                self.states[entry.name] = DONE if is_complete(running) else INCOMPLETE

    def due(self):
        """Returns the entries to run: those without a whole result before stale ones."""
        unmeasured = [entry for entry in self.entries if self.states[entry.name] in (NEVER, INCOMPLETE)]
        return unmeasured + [entry for entry in self.entries if self.states[entry.name] == STALE]

    def finished_checks(self, entry, gpu):
        """Returns the outcomes of an incomplete result of the same GPU, which do not run again."""
        result = self.results[entry.name]
        if self.states[entry.name] != INCOMPLETE or result["gpu"] != gpu:
            return []
        return [check for check in result["checks"] if check["state"] in FINAL]

    def to_pack(self):
        """Returns the object that `packed` takes."""
        entries = {name: {"state": state, "result": self.results[name] if state == INCOMPLETE else None}
                   for name, state in self.states.items()}
        return {"commit": self.commit, "entries": entries}
