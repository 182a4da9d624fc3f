"""Makes a newcomer's mistakes, one command each, and holds what vlmtrain answers to what helps.

    python3 tests/mistakes/run.py build/release/vlmtrain build/release/tests/e2e_tests             # exit 1 where an answer is not as expected
    python3 tests/mistakes/run.py build/release/vlmtrain build/release/tests/e2e_tests --show      # prints every answer

Each mistake of mistakes.py says which exit code is right and which words the answer has to have. Commands run in forked copies of
the second program, which has LibTorch loaded; a mistake with starts_program starts the first. The standard library only.
"""

import argparse
import json
import os
import re
import signal
import struct
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

from mistakes import MISTAKES

SECONDS = 120


def png(path, size=32):
    """A grey picture."""
    rows = b"".join(b"\0" + bytes([(x * 7 + y * 5) % 256 for x in range(size)]) for y in range(size))

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", size, size, 8, 0, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


CONFIG = """model:
  path: model
data:
  train: data.json
training:
  global_batch_size: 2
  max_steps: 2
output:
  dir: run
"""


def make_workplace(folder, model):
    """What most mistakes begin with: a checkpoint, eight pictures with questions, a configuration that is right."""
    (folder / "model").symlink_to(model)
    (folder / "images").mkdir()
    records = []
    for i in range(8):
        png(folder / "images" / f"{i}.png")
        records.append({"id": f"r{i}", "image": f"images/{i}.png", "conversations": [
            {"from": "human", "value": "<image>\nWhat is it?"}, {"from": "gpt", "value": "A grey ramp."}]})
    (folder / "data.json").write_text(json.dumps(records))
    (folder / "train.yaml").write_text(CONFIG)


class Commands:
    """Runs commands in forked copies of a server (tests/e2e/main_test.cpp), or starts the program."""

    def __init__(self, binary, server):
        self.binary = binary
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(("VLMTRAIN_", "SLURM_", "CUDA_"))}
        self.environment |= {"VLMTRAIN_PAST_RUNS": "off", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        self.server = subprocess.Popen([server, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=self.environment)
        signal.signal(signal.SIGALRM, lambda *_: sys.exit(f"a command takes more than {SECONDS} s"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.kill()
        self.server.communicate()

    def run(self, folder, command, environment={}, starts_program=False):
        """Returns exit code, stderr and stdout."""
        signal.alarm(SECONDS)
        if starts_program:
            done = subprocess.run([self.binary, *command], cwd=folder, capture_output=True, text=True, env=self.environment | environment,
                                  stdin=subprocess.DEVNULL)
            return done.returncode, done.stderr, done.stdout
        request = {"folder": str(folder), "arguments": command, "environment": environment}
        self.server.stdin.write(json.dumps(request) + "\n")
        self.server.stdin.flush()
        return int(self.server.stdout.readline()), (folder / "stderr.txt").read_text(), (folder / "stdout.txt").read_text()


def answer(mistake, commands, model):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_workplace(folder, model)
        before = mistake.prepare(folder) if mistake.prepare else None
        for command in before or []:
            code, stderr, _ = commands.run(folder, command)
            if code != 0:
                sys.exit(f"{mistake.what}: {command}: exit {code}: {stderr}")
        code, stderr, stdout = commands.run(folder, mistake.command, mistake.environment, mistake.starts_program)
        return code, (stderr + stdout).replace(name, ".")


def find_problems(mistake, code, text):
    result = [] if code == mistake.code else [f"exit {code} instead of {mistake.code}"]
    flat = " ".join(text.split())
    result += [f"does not say: {words}" for words in mistake.words if words not in flat]
    return result


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary", type=Path, help="vlmtrain")
    parser.add_argument("server", type=Path, help="e2e_tests")
    parser.add_argument("--only", default="", help="mistakes whose description has this in it")
    parser.add_argument("--show", action="store_true", help="print every answer")
    arguments = parser.parse_args()
    mistakes = [mistake for mistake in MISTAKES if arguments.only in mistake.what]
    with tempfile.TemporaryDirectory() as name, Commands(arguments.binary.resolve(), arguments.server.resolve()) as commands:
        code, stderr, _ = commands.run(Path(name), ["init", "--preset", "smolvlm-tiny", "--out", "model"])
        if code != 0:
            sys.exit(stderr)
        answers = [answer(mistake, commands, Path(name) / "model") for mistake in mistakes]
    failed = 0
    for mistake, (code, text) in zip(mistakes, answers):
        problems = find_problems(mistake, code, text)
        failed += bool(problems)
        if problems or arguments.show:
            print(f"== {mistake.what}: {'; '.join(problems) or 'as expected'}\n   exit {code}: {text.strip()}")
    print(f"{len(mistakes)} mistakes, {len(mistakes) - failed} answered as expected")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
