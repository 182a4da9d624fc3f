"""Checks and the queue entries that hold them."""

from dataclasses import dataclass, field
from typing import Callable

# The place to look when the GPU's values are not the CPU's.
KERNELS = "the kernels that the run used (src/nn/attention/attention.cpp, src/nn/layers/matmul.cpp), then tests/gpu for the first tensor that differs"


@dataclass
class Check:
    """One question with one outcome. It runs whole or not at all."""

    name: str
    seconds: float  # on an H200; the check does not start with less time left
    do: Callable  # Bench → Outcome
    # Faults by name: overrides of the side under test, each of which must make the check fail. Only for checks of values.
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
    jobs: int = 1  # checks that run at the same time; 1 where time or memory is measured
    dry_device: str = "virtual:h100"  # the device of --dry; cpu where the virtual GPU has nothing to show
    unusable: Callable = lambda bench: ""  # why this machine cannot do it; empty where it can
