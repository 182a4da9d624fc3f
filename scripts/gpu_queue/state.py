"""The state of each entry of the queue, from the results and from git."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

from harness import inputs
from harness.results import FINAL

RESULTS = inputs.ROOT / "docs" / "benchmarks" / "gpu"
NEVER, INCOMPLETE, STALE, DONE = "never measured", "incomplete", "stale", "done"


def git(*words):
    return subprocess.run(["git", "-C", inputs.ROOT, *words], capture_output=True, text=True)


def current_commit():
    """Returns the abbreviated commit of the checkout; if tracked files differ from it, a plus and a digest of the difference.

    Empty outside a repository.
    """
    commit = git("rev-parse", "--short=12", "HEAD")
    if commit.returncode != 0:
        return ""
    # Files that sparse-checkout removed do not differ.
    difference = git("diff", "HEAD", "--binary").stdout
    return commit.stdout.strip() + ("+" + hashlib.sha256(difference.encode(errors="surrogateescape")).hexdigest()[:8] if difference else "")


def read_result(folder, name):
    """Returns the JSON object of an entry, or None if it has no result. An invalid file is reported and counts as no result."""
    path = Path(folder) / f"{name}.json"
    if not path.exists():
        return None
    try:
        result = json.loads(path.read_text())
        check_result(name, result)
        return result
    except ValueError as error:
        print(f"gpu_queue: {path}: {error}; it counts as not measured", file=sys.stderr)
        return None


# Fields of a result and of its checks.
RESULT_FIELDS = {"entry": str, "commit": str, "date": str, "gpu": str, "device": str, "seconds": (int, float), "complete": bool, "checks": list}
CHECK_FIELDS = {"name": str, "state": str, "text": str, "figures": dict, "fix": str, "seconds": (int, float)}


def check_result(name, result):
    """Raises ValueError if a JSON value is not a result of the entry."""

    def check_fields(what, value, fields):
        if not isinstance(value, dict):
            raise ValueError(f"{what} is not an object")
        for field, kind in fields.items():
            if not isinstance(value.get(field), kind):
                raise ValueError(f"{what} lacks {field}, or it has another type")

    check_fields("the result", result, RESULT_FIELDS)
    for check in result["checks"]:
        check_fields("a check", check, CHECK_FIELDS)
    if result["entry"] != name:
        raise ValueError(f"it is a result of {result['entry']}")
    if not result["commit"]:
        raise ValueError("it has no commit")


def changed_paths(entry, commit):
    """Returns the files of the entry's paths that differ from a commit; None if git does not know it, or files differed from it."""
    if "+" in commit:
        return None
    diff = git("diff", "--name-only", commit, "--", *entry.paths)
    return diff.stdout.split() if diff.returncode == 0 else None


def is_complete(result):
    return bool(result["checks"]) and result["complete"] and all(check["state"] in FINAL for check in result["checks"])


def num_final_checks(result):
    """Returns the number of checks that need not run again."""
    return sum(check["state"] in FINAL for check in result["checks"])


def find_state(entry, result):
    if result is None:
        return NEVER
    if changed_paths(entry, result["commit"]) != []:
        return STALE
    return DONE if is_complete(result) else INCOMPLETE


class Queue:
    """The due entries in their order, and their remaining checks.

    On a machine without the repository's history, `packed` is the state that `scripts/gpu_queue.sh pack` wrote: the commit and, for
    each entry, its state and its result if that is incomplete. `newer` is a folder of results that have not been collected;
    those of the same commit and `device` count.
    """

    def __init__(self, entries, folder=RESULTS, packed=None, newer=None, device="cuda"):
        self.entries = entries
        self.commit = packed["commit"] if packed else current_commit()
        self.states, self.results = {}, {}
        for entry in entries:
            known = packed["entries"].get(entry.name, {"state": NEVER, "result": None}) if packed else None
            result = known["result"] if packed else read_result(folder, entry.name)
            self.states[entry.name] = known["state"] if packed else find_state(entry, result)
            self.results[entry.name] = result
            running = read_result(newer, entry.name) if newer else None
            if running and (running["commit"], running["device"]) == (self.commit, device):
                self.results[entry.name] = running
                self.states[entry.name] = DONE if is_complete(running) else INCOMPLETE

    def due(self):
        """Returns the entries to run: those without a complete result before stale ones."""
        unmeasured = [entry for entry in self.entries if self.states[entry.name] in (NEVER, INCOMPLETE)]
        return unmeasured + [entry for entry in self.entries if self.states[entry.name] == STALE]

    def finished_checks(self, entry, gpu):
        """Returns the outcomes of a result of the same GPU, whose paths have not changed."""
        result = self.results[entry.name]
        if self.states[entry.name] not in (INCOMPLETE, DONE) or result["gpu"] != gpu:
            return []
        return [check for check in result["checks"] if check["state"] in FINAL]

    def to_pack(self):
        """Returns the object that `packed` takes."""
        entries = {name: {"state": state, "result": self.results[name] if state == INCOMPLETE else None}
                   for name, state in self.states.items()}
        return {"commit": self.commit, "entries": entries}
