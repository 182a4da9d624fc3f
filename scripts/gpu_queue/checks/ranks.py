"""Two GPUs of this machine with NCCL; on the CPU, the same checks with Gloo."""

from harness import gpus
from checks import rank_costs
from checks import rank_faults
from checks import rank_shortage
from checks import rank_values


def unusable(bench):
    if not bench.device.startswith("cuda"):
        return ""
    if bench.device != "cuda":
        return f"--device {bench.device} is one GPU; call it with --device cuda"
    count = len(gpus.visible_gpus())
    return "" if count >= 2 else f"{count} GPU{'' if count == 1 else 's'} visible (nvidia-smi -L, CUDA_VISIBLE_DEVICES); two are needed"


def checks(_):
    return rank_values.checks() + rank_costs.checks() + rank_faults.checks() + rank_shortage.checks()
