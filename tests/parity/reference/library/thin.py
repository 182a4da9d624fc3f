"""How an expected.safetensors holds its large tensors.

Gradients, parameters and logits of more than WHOLE elements are stored flat, every EVERY-th element, from the first. The
file also has

    projections   float32 [tensors, 8], a row for every gradient, parameter and logits tensor, in the order of their names

where column j is the sum of all elements of the whole tensor, each with the sign j of its index. The norm of the difference of
two tensors' projections is, on average, sqrt(8) times that of the tensors, and a difference in one element shows in all columns in
full. So elements that are not stored are held as well. ../../stored_tensor.h reads these files.
"""

import shutil

import torch
from safetensors.torch import save_file

WHOLE = 1024
EVERY = 13
PROJECTIONS = 8


def is_thinned(name):
    return name.startswith(("gradient.", "parameter.")) or name.endswith(".logits")


def part(tensor):
    """Returns the elements that a file has of this tensor, flat."""
    flat = tensor.flatten()
    return flat[::EVERY] if flat.numel() > WHOLE else flat


def signs(count):
    """Returns +1 or -1, float64 [PROJECTIONS, count]: bit j of a hash of the index (the finalizer of MurmurHash3)."""
    mask = 0xFFFFFFFF
    value = torch.arange(count, dtype=torch.int64) * 0x9E3779B1 & mask
    value = (value ^ value >> 15) * 0x85EBCA77 & mask
    value = (value ^ value >> 13) * 0xC2B2AE3D & mask
    value ^= value >> 16
    return 1.0 - 2.0 * torch.stack([value >> bit & 1 for bit in range(PROJECTIONS)]).double()


def projections(tensor):
    flat = tensor.flatten().double()
    return (signs(flat.numel()) @ flat).float()


def projection_difference(tensor, stored):
    """Returns an estimate of the norm of the difference of `tensor` from the one whose projections are `stored`."""
    return (projections(tensor) - stored).double().norm().item() / PROJECTIONS**0.5


def thin(tensors):
    """Returns the stored form of these tensors."""
    names = sorted(filter(is_thinned, tensors))
    rows = torch.stack([projections(tensors[name]) for name in names])
    parts = {name: part(value) if is_thinned(name) and value.numel() > WHOLE else value for name, value in tensors.items()}
    return parts | {"projections": rows}


def empty_folder(folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def save(tensors, path):
    save_file({name: value.detach().clone().contiguous() for name, value in thin(tensors).items()}, path)


def stored_projections(tensors):
    """Returns the projections of each tensor of a file."""
    return dict(zip(sorted(filter(is_thinned, tensors)), tensors["projections"]))
