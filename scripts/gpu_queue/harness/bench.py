"""The programs under test: checkpoints, runs on the GPU and on the CPU, and their results."""

import contextlib
import hashlib
import json
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path

from harness import inputs
from harness import program
from harness import tensors


class RunFailed(Exception):
    """Raised if a program ends with an unexpected exit code."""

    def __init__(self, what, ended):
        super().__init__(f"{what}: exit code {ended.code}: {ended.reason()}")


class Hung(RunFailed):
    """Raised if a program is killed because it exceeds its time limit."""

    def __init__(self, what, seconds):
        Exception.__init__(self, f"{what} ran for more than {seconds} s and was ended")


@dataclass
class Run:
    """The files of a training run."""

    folder: Path
    seconds: float

    def lines(self):
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    def plan(self):
        path = self.folder / "plan.json"
        return json.loads(path.read_text()) if path.exists() else None

    def optimizer(self, step):
        return tensors.read_joined(sorted((self.folder / "checkpoints" / f"step-{step}" / "trainer_state").glob("optimizer*.safetensors")))

    def weights(self, step):
        """Returns fp32 master weights if they exist, else the checkpoint's tensors."""
        masters = {name.removeprefix("master."): values for name, values in self.optimizer(step).items() if name.startswith("master.")}
        if masters:
            return masters
        result = {}
        for path in sorted((self.folder / "checkpoints" / f"step-{step}").glob("*.safetensors")):
            result.update(tensors.read(path))
        return result


class UnderTest:
    """Something with a `device`: cuda, cuda:N, virtual:NAME or cpu."""

    @property
    def is_virtual(self):
        return self.device.startswith("virtual:")

    @property
    def is_cpu(self):
        return self.device == "cpu"


class Bench(UnderTest):
    """The programs, the device and the working folders of a queue run.

    `device` is under test: cuda, cuda:N, virtual:NAME, or cpu, which is compared with itself on two threads. `portable` holds the
    measuring programs next to vlmtrain, `carried` the folders copied to the GPU machine, `out` the results. `fault`: in
    a self-test, overrides of the side under test that a check must detect. Checks of one entry may run in several threads.
    """

    def __init__(self, vlmtrain, device, work, gpu_tests=None, program_identity="", carried=None, out=None):
        self.vlmtrain, self.device, self.work, self.gpu_tests = vlmtrain, device, work, gpu_tests
        self.program_identity = program_identity
        self.portable = vlmtrain.parent
        self.carried = carried
        self.out = out or work
        self.clock = program.Clock(0)
        self.tokenizer = None  # tokenizer.json for presets without one; otherwise inputs.write_tokenizer creates one
        self.fault = {}
        self.threads = None  # OMP_NUM_THREADS of programs, when several checks run at the same time
        self.locks = {}
        self.locks_guard = threading.Lock()

    def lock(self, path):
        """Returns the lock of a folder that several checks need and one of them creates."""
        with self.locks_guard:
            return self.locks.setdefault(path, threading.RLock())

    def find_carried(self, name):
        """Returns the carried folder of that name, or None."""
        return self.carried / name if self.carried and (self.carried / name).exists() else None

    def attach(self, name):
        """Returns a path for a raw file that goes into the result archive."""
        folder = self.out / "attachments"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / name

    def environment(self, device):
        """Returns the environment of one side. On the CPU the two sides have different numbers of threads, so that sums round differently."""
        if not self.is_cpu:
            return {"OMP_NUM_THREADS": str(self.threads)} if self.threads else {}
        return {"OMP_NUM_THREADS": "2" if device == "gpu" else "1"}

    def run(self, words, environment=None, watch=None):
        return program.run([self.vlmtrain, *words], self.clock, environment, watch)

    def run_program(self, words, environment=None):
        return program.run(words, self.clock, environment)

    @contextlib.contextmanager
    def at_most(self, seconds, what):
        """Limits a block to `seconds`, so that a hanging program costs one check only. Raises Hung."""
        whole = self.clock
        self.clock = program.Clock(min(seconds, whole.remaining()))
        try:
            yield
        except program.OutOfTime:
            if whole.remaining() <= 0:
                raise
            raise Hung(what, seconds) from None
        finally:
            self.clock = whole

    def checkpoint(self, preset, seed=0, dtype="float32"):
        """Returns the folder of a randomly initialized checkpoint, which is created once."""
        folder = self.work / f"{preset}-{seed}{'' if dtype == 'float32' else '-' + dtype}"
        with self.lock(folder):
            self.create_checkpoint(preset, seed, dtype, folder)
        return folder

    def create_checkpoint(self, preset, seed, dtype, folder):
        if not folder.exists():
            words = ["init", "--preset", preset, "--out", folder, "--seed", seed] + ([] if dtype == "float32" else ["--dtype", dtype])
            if not (inputs.ROOT / "configs" / "models" / preset / "tokenizer.json").exists():
                self.work.mkdir(parents=True, exist_ok=True)
                tokenizer = self.tokenizer or inputs.write_tokenizer(preset, self.work / f"{preset}-tokenizer.json")
                words += ["--tokenizer", tokenizer]
            ended = self.run(words)
            if ended.code != 0:
                raise RunFailed(f"init --preset {preset}", ended)

    def small_data(self):
        folder = self.work / "small-data"
        with self.lock(folder):
            if not (folder / "train.json").exists():
                inputs.write_small_data(folder)
        return folder

    def write_config(self, path, settings):
        inputs.write_config(path, settings)

    def settings(self, preset, overrides):
        """Returns the settings of a small run: every step is saved, and nothing else is written."""
        data = self.small_data()
        return {"model.path": self.checkpoint(preset), "data.train": data / "train.json", "training.precision": "fp32",
                "training.global_batch_size": 4, "training.micro_batch_size": 2, "training.max_steps": 5,
                "training.learning_rate": "1.0e-3", "training.lr_scheduler": "constant", "training.warmup_ratio": 0,
                "training.weight_decay": 0.1, "training.max_grad_norm": 0, "memory.recompute": "none",
                "output.save_steps": 1, "output.save_total_limit": 9, "output.sample_predictions": 0, "output.report": False,
                "output.tensorboard": False, **overrides}

    def reference(self, preset, overrides=None):
        """Returns the run on the CPU; runs once for all checks."""
        return self.kept_run("reference", "cpu", preset, overrides or {})

    def on_gpu(self, preset, overrides=None):
        """Returns the run on the device under test."""
        return self.kept_run("gpu", self.device, preset, {**(overrides or {}), **self.fault})

    def kept_run(self, side, device, preset, overrides, words=()):
        """Returns the run of a side; runs once. `words`: further arguments of the command, the same in all runs of a side."""
        settings = self.settings(preset, overrides)
        key = json.dumps([self.program_identity, side, device, preset, {name: str(value) for name, value in settings.items()}], sort_keys=True)
        folder = self.work / "runs" / f"{side}-{preset}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
        with self.lock(folder):
            return self.run_once(folder, device, settings, words, self.environment(side))

    def run_once(self, folder, device, settings, words, environment):
        done = folder / "done"
        if done.exists():
            return Run(self.run_folder(folder / "run", device), 0)
        inputs.clear(folder)
        folder.mkdir(parents=True)
        run = self.train(folder, device, settings, words, environment)
        done.touch()
        return run

    def run_folder(self, folder, device):
        return folder / device.replace(":", "-") if device.startswith("virtual:") else folder

    def train(self, folder, device, settings, words=(), environment=None, watch=None, expected=(0,)):
        """Trains in a new `folder` and returns the run. Raises RunFailed unless the exit code is one of `expected`."""
        ended, run = self.try_train(folder, device, settings, words, environment, watch)
        if ended.code not in expected:
            raise RunFailed(f"the run on {device}", ended)
        return run

    def try_train(self, folder, device, settings, words=(), environment=None, watch=None):
        folder.mkdir(parents=True, exist_ok=True)
        self.write_config(folder / "train.yaml", {**settings, "output.dir": folder / "run"})
        ended = self.run(["--config", folder / "train.yaml", "--device", device, "--quiet", *words], environment, watch)
        return ended, Run(self.run_folder(folder / "run", device), ended.seconds)

    def remove_runs(self):
        shutil.rmtree(self.work / "runs", ignore_errors=True)
