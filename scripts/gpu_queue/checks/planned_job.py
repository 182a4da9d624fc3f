"""A run on identical samples, so that each step is the planned one, and the figures of its files."""

import re
import statistics
import subprocess
import threading

from harness import inputs
from harness.bench import RunFailed
from programs import describe_machine

STEPS, STEPS_ON_A_VIRTUAL_GPU = 6, 3
WARM_UP = 2
GLOBAL_BATCH = 16
IMAGES, ANSWER_WORDS = 2, 200


class GpuMemory:
    """Records a process's maximum device memory according to NVML.

    None without nvidia-smi, and if the driver does not list the process by its number (as in most containers).
    """

    def __init__(self, process):
        self.number, self.most, self.ended = process.pid, None, threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def watch(self):
        query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
        while not self.ended.wait(0.5):
            try:
                lines = subprocess.run(query, capture_output=True, text=True, check=True, timeout=10).stdout.splitlines()
                used = [int(size) * 2 ** 20 for number, size in (line.split(", ") for line in lines) if int(number) == self.number]
            except (OSError, ValueError, subprocess.SubprocessError):
                return
            self.most = max(used + ([self.most] if self.most else []), default=None)

    def finish(self):
        self.ended.set()
        self.thread.join(timeout=15)


class Job:
    """A job: a preset with random weights on identical samples. `dtype`: data type of the checkpoint's weights."""

    def __init__(self, preset, overrides=None, images=IMAGES, words=ANSWER_WORDS, global_batch=GLOBAL_BATCH, model=None, dtype="float32"):
        self.preset, self.overrides, self.model, self.dtype = preset, overrides or {}, model, dtype
        self.images, self.words, self.global_batch = images, words, global_batch

    def settings(self, bench):
        data = bench.work / f"worst-{self.images}-{self.words}-{self.global_batch}"
        with bench.lock(data):
            if not (data / "train.json").exists():
                inputs.write_worst_data(data, self.images, self.words, self.global_batch)
        return {"model.path": self.model or bench.checkpoint(self.preset, dtype=self.dtype), "data.train": data / "train.json",
                "data.num_workers": 8, "training.global_batch_size": self.global_batch,
                "training.max_steps": STEPS_ON_A_VIRTUAL_GPU if bench.is_virtual else STEPS, "training.precision": "bf16",
                "training.learning_rate": "1.0e-5", "output.save_steps": 0, "output.save_total_limit": 1, "output.sample_predictions": 0,
                "output.report": False, "output.tensorboard": False, **self.overrides}

    def run(self, bench, name, overrides, environment=None, expected=(0,)):
        """Returns the run, its program.Ended, and the maximum memory that NVML reported.

        Raises RunFailed unless the exit code is one of `expected`.
        """
        folder = bench.work / "truth" / name
        inputs.clear(folder)
        watchers = []

        def watch(process):
            watchers.append(GpuMemory(process))
            return watchers[-1]

        ended, run = bench.try_train(folder, bench.device, {**self.settings(bench), **overrides}, environment=environment, watch=watch)
        if ended.code not in expected:
            raise RunFailed(f"{name}", ended)
        inputs.clear(run.folder / "checkpoints")
        return run, ended, watchers[0].most


def gigabytes(size):
    return "-" if size is None else f"{size / 1e9:.3f} GB"


def gpu_bytes(device):
    """Returns the whole GPU's memory according to nvidia-smi; None if nvidia-smi fails."""
    size = re.search(r"(\d+) MiB", describe_machine(device)["gpu"])
    return int(size[1]) * 2 ** 20 if size else None


def total_bytes(plan, lines):
    """Returns the whole GPU's memory as the program reports it, also if memory.limit_gb is less."""
    return plan["measured"]["device_used_bytes"] + min(line["device_free_bytes"] for line in lines)


def context_bytes(line, whole_bytes):
    """Returns the GPU memory in use outside PyTorch's allocator at the end of a step."""
    return whole_bytes - line["device_free_bytes"] - line["reserved_bytes"]


def plan_arguments(plan):
    """Returns the choices of a plan as settings of another run."""
    recompute = plan["recompute"]
    selective_blocks = recompute["selective_language_blocks"]
    return {"training.micro_batch_size": plan["micro_batch_size"],
            "memory.recompute": f"{recompute['vision_blocks']}+{recompute['language_blocks']}" + (f"/{selective_blocks}" if selective_blocks else ""),
            "memory.vision_tiles_per_pass": plan["vision_tiles_per_pass"], "memory.loss_chunk_rows": plan["loss_chunk_rows"]}


def measure_seconds(lines):
    """Returns the median seconds of a step after warm-up, without image decoding, which plans do not include."""
    return statistics.median(line["step_seconds"] - line["data_wait_seconds"] for line in lines[WARM_UP:])
