"""Writes tests/io/data/torch_*.pt, files of torch.save that io/torch_file.h reads or rejects.

python scripts/make_torch_file_goldens.py, with torch 2.15.0 (tests/parity/reference/requirements.txt).
tests/io/torch_file_test.cpp repeats their values.
"""

import argparse
import os
import random
from pathlib import Path

import torch

FOLDER = Path(__file__).parent.parent / "tests" / "io" / "data"


class RunsACommand:
    """An object whose unpickling calls os.system, if the reader permits it."""

    def __reduce__(self):
        return os.system, ("touch torch_file_has_run_code",)


def small_model():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    with torch.no_grad():
        for index, parameter in enumerate(model.parameters()):
            parameter.copy_(torch.arange(parameter.numel(), dtype=torch.float32).view_as(parameter) + 10 * index)
    return model


def tensors():
    base = torch.arange(12, dtype=torch.float32).view(3, 4)
    with_state = torch.nn.Parameter(base + 100)
    with_state.note = "kept by Python"
    kinds = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
             torch.uint8, torch.bool]
    return {
        "base": base, "transposed": base.t(), "row": base[1], "every_second": base.flatten()[1::2],
        "expanded": base[:1].expand(2, 4), "parameter": torch.nn.Parameter(base), "parameter_with_state": with_state,
        "scalar": torch.tensor(2.5), "empty": torch.empty(0, 4),
    } | {str(kind).removeprefix("torch."): torch.arange(5).to(kind) for kind in kinds}


def main():
    def save(name, content, **settings):
        torch.save(content, FOLDER / f"torch_{name}.pt", **settings)

    model = small_model()
    state = model.state_dict()
    save("state", state)
    save("protocol_4", state, pickle_protocol=4)
    save("tensors", tensors())
    save("training", {
        "epoch": 3, "loss": torch.tensor(0.5), "best": None, "rate": 1e-3, "step": 2**40, "below": -2, "model": state,
        "optimizer": {"state": {0: {"step": torch.tensor(1.0)}}, "param_groups": [{"betas": (0.9, 0.999), "params": [0, 1]}]},
        "args": argparse.Namespace(name="run", sizes=[1, 2]), "seen": {1, 2}, "random": random.getstate(), "on": True,
    })
    # Rejected files.
    save("legacy", state, _use_new_zipfile_serialization=False)
    save("module", model)
    save("list", [torch.zeros(2)])
    save("numbers", {"epoch": 3})
    save("complex", {"real": torch.zeros(2), "spectrum": torch.zeros(2, dtype=torch.complex64)})
    save("command", {"weight": torch.zeros(2), "evil": RunsACommand()})


if __name__ == "__main__":
    main()
