"""Checks and the queue entries that hold them."""

from dataclasses import dataclass, field
from typing import Callable

# The place to look if the GPU's values differ from the CPU's.
KERNELS = "the kernels that the run used (src/nn/attention/attention.cpp, src/nn/layers/matmul.cpp), then tests/gpu for the first tensor that differs"


@dataclass
class Check:
    """A check with one outcome. It runs completely or not at all."""

    name: str
    seconds: float  # on an H200; the check does not start if less time remains
    do: Callable  # Bench → Outcome
    # Faults by name: overrides of the side under test; each must make the check fail. Only for checks of values.
    faults: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Entry:
    """A line of the queue. Its result is docs/benchmarks/gpu/NAME.json."""

    name: str
    title: str
    seconds: int  # all checks on an H200, inputs that they create included
    shows: str  # the bound or the question that the result answers
    checks: Callable  # Bench → list of Check
    paths: tuple  # git pathspecs; a change in them makes the result stale
    carry: tuple = ("portable",)  # folders of gpu-queue/ that the entry needs on the GPU machine
    jobs: int = 1  # number of concurrent checks; 1 if time or memory is measured
    dry_device: str = "virtual:h100"  # the device of --dry; cpu if the check needs values
    unusable: Callable = lambda bench: ""  # returns why this machine cannot run the entry; empty if it can
