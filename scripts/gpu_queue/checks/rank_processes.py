"""The two ranks of a run as separate processes, started like torchrun's, so that each can be signaled and has an exit code."""

import json
import os
import signal
import socket
import subprocess
import time

from harness import program


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Ranks:
    """A context manager for two ranks; on exit, kills those that still run, with their children."""

    def __init__(self, bench, folder, name, environments=({}, {})):
        """Starts the ranks. The configuration is folder/train.yaml, the run folder folder/run, the logs folder/NAME-RANK.txt."""
        self.bench, self.folder, self.name = bench, folder, name
        self.run = bench.run_folder(folder / "run", bench.device)
        self.started = self.lines()
        port = free_port()
        self.processes = []
        for rank in range(2):
            variables = {"WORLD_SIZE": "2", "RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            with open(self.log_path(rank), "w") as log_path:
                self.processes.append(subprocess.Popen(
                    [str(word) for word in (bench.vlmtrain, "--config", folder / "train.yaml", "--device", bench.device, "--quiet")],
                    stdin=subprocess.DEVNULL, stdout=log_path, stderr=log_path, start_new_session=True,
                    env={**os.environ, **program.LEARNS_NOTHING, **bench.environment("ranks"), **variables, **environments[rank]}))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()

    def log_path(self, rank):
        return self.folder / f"{self.name}-{rank}.txt"

    def lines(self):
        """Returns the complete lines of metrics.jsonl; the last may be partial."""
        path = self.run / "metrics.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text[:text.rfind("\n") + 1].splitlines()]

    def make_steps(self, count, seconds):
        """Returns whether the run completes `count` new steps within `seconds`, before any rank ends."""
        began = time.monotonic()
        while len(self.lines()) - len(self.started) < count:
            if self.bench.clock.remaining() <= 0:
                raise program.OutOfTime
            if time.monotonic() - began > seconds or any(process.poll() is not None for process in self.processes):
                return False
            time.sleep(0.1)
        return True

    def send(self, rank, what):
        self.processes[rank].send_signal(what)

    def find_end(self, rank, seconds):
        """Returns program.Ended; None if the rank runs for longer than `seconds`."""
        began = time.monotonic()
        try:
            code = self.processes[rank].wait(timeout=max(0, min(seconds, self.bench.clock.remaining())))
        except subprocess.TimeoutExpired:
            if self.bench.clock.remaining() <= 0:
                raise program.OutOfTime from None
            return None
        return program.Ended(code, "", self.log_path(rank).read_text(errors="replace"), time.monotonic() - began)

    def ends(self, seconds):
        """Returns find_end of both ranks, within `seconds` together."""
        last = time.monotonic() + seconds
        return [self.find_end(rank, last - time.monotonic()) for rank in range(2)]
