"""Two GPUs of this machine, by NCCL; on the CPU the same by Gloo."""

import cards
import rank_costs
import rank_faults
import rank_shortage
import rank_values
from checks import Part


def why_not(bench):
    if not bench.device.startswith("cuda"):
        return ""
    if bench.device != "cuda":
        return f"--device {bench.device} is one card; call it with --device cuda"
    count = len(cards.visible_cards())
    return "" if count >= 2 else f"{count} GPU{'' if count == 1 else 's'} can be seen (nvidia-smi -L, CUDA_VISIBLE_DEVICES), and it takes two"


PARTS = [Part("ranks", "two ranks on two GPUs: values, repetition, NCCL's memory and time, lost and stopped ranks", 6,
              lambda bench: rank_values.checks() + rank_costs.checks() + rank_faults.checks() + rank_shortage.checks(), why_not)]
