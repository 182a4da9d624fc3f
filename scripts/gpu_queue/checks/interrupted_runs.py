"""Runs that receive a signal, and their files."""

import hashlib
import json
import os
import threading

from harness import inputs


def read_lines(path):
    """Returns the complete lines of metrics.jsonl; the last may be partial."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[:text.rfind("\n") + 1].splitlines()]


def checkpoints(run_folder):
    """Returns the steps of the complete checkpoints, and whether another is being written."""
    folder = run_folder / "checkpoints"
    names = os.listdir(folder) if folder.exists() else []
    steps = sorted(int(name.removeprefix("step-")) for name in names if name.startswith("step-"))
    return steps, any("vlmtrain-new" in name for name in names)


class Interruption:
    """Sends a signal to a run as soon as `is_due(lines, checkpoints, is_saving)`."""

    def __init__(self, process, run_folder, what, is_due):
        self.process, self.folder, self.what, self.is_due = process, run_folder, what, is_due
        self.lines, self.saved, self.was_saving, self.ended = None, [], False, threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def watch(self):
        while not self.ended.wait(0.003):
            saved, is_saving = checkpoints(self.folder)
            if self.process.poll() is None and self.is_due(read_lines(self.folder / "metrics.jsonl"), saved, is_saving):
                self.process.send_signal(self.what)
                self.was_saving = is_saving
                return

    def finish(self):
        """Reads the files of the ended run."""
        self.ended.set()
        self.thread.join()
        self.lines = read_lines(self.folder / "metrics.jsonl")
        self.saved, _ = checkpoints(self.folder)


def interrupt(bench, folder, settings, what, is_due):
    """Runs until the signal ends the run. Returns its program.Ended and the Interruption."""
    inputs.clear(folder)
    watchers = []

    def watch(process):
        watchers.append(Interruption(process, bench.run_folder(folder / "run", bench.device), what, is_due))
        return watchers[-1]

    ended, _ = bench.try_train(folder, bench.device, settings, environment=bench.environment("reference"), watch=watch)
    return ended, watchers[0]


def resume(bench, folder, settings):
    """Starts the same command again; in a self-test with the planted fault."""
    overrides = {key: value for key, value in bench.fault.items() if "." in key}
    if bench.fault.get("without") == "checkpoint":
        inputs.clear(folder / "run" / "checkpoints")
    return bench.train(folder, bench.device, {**settings, **overrides}, environment=bench.environment("reference"))


def digests(run, step):
    """Returns the SHA-256 of each tensor file of a checkpoint by name."""
    folder = run.folder / "checkpoints" / f"step-{step}"
    digest_by_file = {}
    for path in sorted(folder.rglob("*.safetensors")):
        with open(path, "rb") as file:
            digest_by_file[str(path.relative_to(folder))] = hashlib.file_digest(file, "sha256").hexdigest()
    return digest_by_file
