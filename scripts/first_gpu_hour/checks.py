"""What a check is."""

from dataclasses import dataclass, field
from typing import Callable

# Where to look when the card's values are not the CPU's.
KERNELS = "the kernels that the run used (src/nn/attention.cpp, src/nn/matmul.cpp), then tests/gpu for the tensor where it begins"


@dataclass
class Check:
    name: str
    seconds: float  # it is not begun with less time than this
    do: Callable  # Bench → Outcome
    # Overrides of the side under test, by what they are called, each of which must make the check fail. Of checks of values.
    faults: dict = field(default_factory=dict)


@dataclass
class Part:
    name: str
    about: str
    minutes: float
    checks: Callable  # Bench → list of Check
    why_not: Callable = lambda bench: ""  # why this machine can do none of them; empty where it can
