"""The memory that a process takes of a GPU outside PyTorch's allocator: before a run, after its first step and at its end."""

import subprocess
import sys

from checks.planned_job import Job, context_bytes, gigabytes, total_bytes
from harness import results
from harness.check import Check
from programs import describe_machine

STEPS = 6
# A run plans with what is taken at its start and with this much for kernels that load later (kLoadedLater in src/planner/limit.cpp).
LOADED_LATER_BYTES = 208 * 2 ** 20
FIX = "the context in src/memory/gpu_list.h and kLoadedLater in src/planner/limit.cpp (or another process on the GPU)"
BARE_CONTEXT = """
import torch
torch.zeros(1, device="cuda")
free, total = torch.cuda.mem_get_info()
print(total - free - torch.cuda.memory_reserved())
"""


def unusable_without(name):
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
    ended = subprocess.run([sys.executable, "-c", BARE_CONTEXT], capture_output=True, text=True, timeout=60)
    return int(ended.stdout) if ended.returncode == 0 else None


def context_of(name, preset, overrides):
    """The context of a run at three moments against the plan's."""

    def do(bench):
        job = Job(preset, {"training.max_steps": STEPS, "memory.empty_cache_above": 1, **overrides}, images=1, words=20, global_batch=2)
        run, _, nvml = job.run(bench, f"context-{name}", {})
        plan, lines = run.plan(), run.lines()
        whole = total_bytes(plan, lines)
        planned = plan["memory"]["context_bytes"]
        first, last = (context_bytes(line, whole) for line in (lines[0], lines[-1]))
        before = planned - LOADED_LATER_BYTES if plan["memory"]["context_measured"] else None
        own = nvml - lines[-1]["reserved_bytes"] if nvml else None
        figures = {"planned_bytes": planned, "before_bytes": before, "first_step_bytes": first, "last_step_bytes": last,
                   "nvml_bytes": own, "bare_torch_bytes": bare_context_bytes(bench), "gpu_bytes": whole}
        text = (f"context {gigabytes(first)} after the first step, {gigabytes(last)} at the end; planned {gigabytes(planned)}, "
                f"{'measured' if before else 'of the table'}; at the run's start {gigabytes(before)}; NVML {gigabytes(own)}; "
                f"a bare process of PyTorch {gigabytes(figures['bare_torch_bytes'])}")
        if last > planned:
            return results.failed(text, FIX, **figures)
        return results.dry(text, **figures) if bench.is_virtual else results.passed(text, **figures)

    return do


def checks(bench):
    if bench.is_cpu:
        return []
    quantized = {"lora.rank": 4, "model.quantization": "nf4"}
    return [Check("smolvlm-tiny, full: CUDA context", 8, context_of("full", "smolvlm-tiny", {})),
            Check("qwen2.5-vl-tiny, LoRA on NF4: CUDA context", 8, context_of("nf4", "qwen2.5-vl-tiny", quantized))]
