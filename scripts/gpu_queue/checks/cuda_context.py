"""The GPU memory of a run outside PyTorch's allocator: before its first tensor, after its first step and at its end."""

import subprocess
import sys
import threading

from checks.planned_job import Job, context_bytes, gigabytes, total_bytes
from harness import inputs
from harness import results
from harness.bench import RunFailed
from harness.check import Check
from programs import describe_machine

STEPS = 6
FIX = "the context in src/memory/gpu_list.h and kLoadedLater in src/planner/model/target.cpp (or another process on the GPU)"
# The minimum size of a context; a smaller change of the GPU's memory has another cause.
LEAST_CONTEXT = 100 * 2 ** 20
BARE_CONTEXT = """
import sys
import torch
torch.zeros(1, device=sys.argv[1])
free, total = torch.cuda.mem_get_info(sys.argv[1])
print(total - free - torch.cuda.memory_reserved())
"""


def used_bytes(device):
    """Returns the memory in use on a GPU according to nvidia-smi; None if nvidia-smi fails."""
    query = ["nvidia-smi", f"--id={device.partition(':')[2] or 0}", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        return int(subprocess.run(query, capture_output=True, text=True, check=True, timeout=10).stdout) * 2 ** 20
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


class UsedMemory:
    """Samples the GPU's memory in use while a process runs, minus the memory in use before. None without nvidia-smi."""

    def __init__(self, device):
        self.device, self.ended = device, threading.Event()
        self.before = used_bytes(device)
        self.samples = None if self.before is None else []
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def watch(self):
        while self.samples is not None and not self.ended.wait(0.02):
            used = used_bytes(self.device)
            if used is not None:
                self.samples.append(used - self.before)

    def finish(self):
        self.ended.set()
        self.thread.join(timeout=15)

    def first_plateau(self):
        """Returns the first amount that occurs twice in a row: while it plans, a run has a context and no tensors."""
        samples = self.samples or []
        return next((a for a, b in zip(samples, samples[1:]) if a == b and a >= LEAST_CONTEXT), None)


def find_missing_packages(name):
    """Returns the condition of an entry that measures one kind of GPU."""

    def unusable(bench):
        if bench.is_virtual:
            return ""
        gpu = describe_machine(bench.device)["gpu"]
        return "" if name in gpu else f"{bench.device} is {gpu}, and not an {name}"

    return unusable


def bare_context_bytes(bench):
    """Returns the context of a Python process that has launched one kernel of PyTorch's; None without torch or a real GPU."""
    if bench.is_virtual:
        return None
    ended = subprocess.run([sys.executable, "-c", BARE_CONTEXT, bench.device], capture_output=True, text=True, timeout=60)
    return int(ended.stdout) if ended.returncode == 0 else None


def measure_context(name, preset, overrides):
    """Compares the context of a run at three moments with the plan's."""

    def do(bench):
        job = Job(preset, {"training.max_steps": STEPS, "memory.empty_cache_above": 1, **overrides}, images=1, words=20, global_batch=2)
        folder, used = bench.work / f"context-{name}", UsedMemory(bench.device)
        inputs.clear(folder)
        ended, run = bench.try_train(folder, bench.device, job.settings(bench), watch=lambda _: used)
        if ended.code != 0:
            raise RunFailed(name, ended)
        plan, lines = run.plan(), run.lines()
        whole = total_bytes(plan, lines)
        planned = plan["memory"]["context_bytes"]
        first, last = (context_bytes(line, whole) for line in (lines[0], lines[-1]))
        figures = {"planned_bytes": planned, "start_bytes": used.first_plateau(), "first_step_bytes": first, "last_step_bytes": last,
                   "bare_torch_bytes": bare_context_bytes(bench), "in_use_before_bytes": used.before, "gpu_bytes": whole,
                   "samples": used.samples}
        text = (f"context {gigabytes(figures['start_bytes'])} while it plans, {gigabytes(first)} after the first step, "
                f"{gigabytes(last)} at the end; planned {gigabytes(planned)}; a bare process of PyTorch {gigabytes(figures['bare_torch_bytes'])}")
        if last > planned:
            return results.failed(text, FIX, **figures)
        return results.dry(text, **figures) if bench.is_virtual else results.passed(text, **figures)

    return do


def checks(bench):
    if bench.is_cpu:
        return []
    quantized = {"lora.rank": 4, "model.quantization": "nf4"}
    return [Check("smolvlm-tiny, full: CUDA context", 8, measure_context("full", "smolvlm-tiny", {})),
            Check("qwen2.5-vl-tiny, LoRA on NF4: CUDA context", 8, measure_context("nf4", "qwen2.5-vl-tiny", quantized))]
