"""A second process that fills the GPU while a run trains (harness/gpu_filler.py)."""

import importlib.util
import subprocess
import sys
import threading
from pathlib import Path

from checks.interrupted_runs import read_lines

SECONDS = 60


def has_torch():
    return importlib.util.find_spec("torch") is not None


class Filler:
    """A context manager around gpu_filler.py; on exit, the process frees its memory."""

    def __init__(self, device):
        program = Path(__file__).resolve().parents[1] / "harness" / "gpu_filler.py"
        self.process = subprocess.Popen([sys.executable, program, device], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True)
        self.limit = threading.Timer(SECONDS, self.process.kill)
        self.limit.start()

    def __enter__(self):
        if self.process.stdout.readline().strip() != "ready":
            raise RuntimeError(f"gpu_filler: {self.process.stderr.read().strip()[-300:]}")
        return self

    def ask(self, word, size):
        """Sends a request and returns the bytes that the process allocated."""
        print(word, size, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline().split()
        if len(answer) != 2 or answer[0] != "took":
            raise RuntimeError(f"gpu_filler: {self.process.stderr.read().strip()[-300:]}")
        return int(answer[1])

    def __exit__(self, *_):
        self.limit.cancel()
        self.process.stdin.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class FillDuringRun:
    """Fills the GPU once the run has done some steps. `request` maps the run's reserved bytes to a request to the Filler."""

    def __init__(self, filler, run_folder, steps, request):
        self.filler, self.path, self.steps, self.request = filler, run_folder / "metrics.jsonl", steps, request
        self.filled_bytes, self.done_after, self.failure, self.ended = None, None, "", threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def watch(self):
        while not self.ended.wait(0.005):
            lines = read_lines(self.path)
            if len(lines) >= self.steps:
                try:
                    self.filled_bytes = self.filler.ask(*self.request(lines[-1]["reserved_bytes"]))
                except (OSError, RuntimeError) as error:
                    self.failure = str(error)
                self.done_after = len(read_lines(self.path))
                return

    def finish(self):
        self.ended.set()
        self.thread.join()
