"""Records of the parts: results in the repository, and completed steps in build/nightly."""

import json
import subprocess
import sys
from pathlib import Path

RESULTS = Path("docs/benchmarks/nightly")
STATES = Path("build/nightly")


def git(root, *arguments):
    return subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True)


def head(root):
    return git(root, "rev-parse", "HEAD").stdout.strip()


def has_changed(root, commit, paths):
    """Returns whether the paths differ from those of `commit`; also if git does not have that commit."""
    return git(root, "diff", "--quiet", commit, "--", *paths).returncode != 0


def is_clean(root, paths):
    return not git(root, "status", "--porcelain", "--", *paths).stdout


def read_json(path):
    """Returns the object of a file; None if it does not exist or is invalid, which is reported."""
    if not path.exists():
        return None
    try:
        value = json.loads(path.read_text())
        if not isinstance(value, dict) or "commit" not in value:
            raise ValueError("it is not an object with a commit")
        return value
    except ValueError as error:
        print(f"nightly: {path}: {error}; it does not count", file=sys.stderr)
        return None


def write_json(path, value):
    """Replaces a file atomically, so that a killed call leaves the old one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(value, indent=1) + "\n")
    partial.replace(path)


def read_result(root, part):
    return read_json(root / RESULTS / f"{part.name}.json")


def write_result(root, part, result):
    write_json(root / RESULTS / f"{part.name}.json", result)


def status(root, part):
    """Returns passed, failed, stale or never."""
    result = read_result(root, part)
    if result is None:
        return "never"
    return "stale" if has_changed(root, result["commit"], part.paths) else result["outcome"]


class State:
    """The completed steps of a part at a commit. Saved after each step, so that an interrupted part resumes."""

    def __init__(self, root, part):
        self.path = root / STATES / part.name / "state.json"
        self.is_clean = is_clean(root, part.paths)
        saved = read_json(self.path)
        if saved and self.is_clean and not has_changed(root, saved["commit"], part.paths):
            self.commit, self.steps = saved["commit"], saved["steps"]
        else:
            self.commit, self.steps = head(root), {}

    def outcome(self, step):
        """Returns passed, failed, or None if the step has not run with its current command."""
        done = self.steps.get(step.name, {})
        return done["outcome"] if done.get("command") == step.command else None

    def record(self, step, outcome, seconds):
        self.steps[step.name] = {"outcome": outcome, "seconds": round(seconds), "command": step.command}
        self.save()

    def start_over(self, outcome):
        """Ends a round: the next call runs the steps that have failed, or all if the part has passed."""
        self.steps = {name: step for name, step in self.steps.items() if outcome == "failed" and step["outcome"] == "passed"}
        self.save()

    def save(self):
        # An uncommitted change cannot be recognized later, so steps completed with it do not count in the next call.
        commit = self.commit if self.is_clean else ""
        write_json(self.path, {"commit": commit, "steps": self.steps})
