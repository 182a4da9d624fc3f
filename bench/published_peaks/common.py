"""The parts of a source: processes on one GPU, each with its points in the order of measurement."""

from collections.abc import Callable
from dataclasses import dataclass, field

MB = 10**6
MIB = 2**20
GB = 10**9
GIB = 2**30


@dataclass(frozen=True)
class Point:
    """A measured setting. `published` is the figure as printed, in the unit of its process."""

    setting: str
    published: float


@dataclass(frozen=True)
class Process:
    """A process on the virtual GPU `gpu`. `measure()` returns one number of bytes for each point.

    `stated_gpu` is the GPU that the source states, `unit` and `unit_bytes` the unit of its figures, `packages` the versions
    of Python packages that it needs besides PyTorch (name: version).
    """

    title: str
    stated_gpu: str
    gpu: str
    unit: str
    unit_bytes: int
    points: list[Point]
    measure: Callable[[], list[int]]
    packages: dict[str, str] = field(default_factory=dict)


def measure_peak(run):
    """Returns the peak of allocated bytes during `run()`, earlier allocations included."""
    import torch

    torch.cuda.reset_peak_memory_stats()
    run()
    return torch.cuda.max_memory_allocated()
