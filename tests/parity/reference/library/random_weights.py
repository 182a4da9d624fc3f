"""Random float64 weights and inputs that float32 holds."""

import torch


def random(*shape):
    return torch.randn(*shape).double()


def fill(module, find_divisor):
    """Fills a module without zeros. find_divisor: of normal values, by name and parameter; norms are near 1."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            values = random(*parameter.shape)
            is_norm = "norm" in name and name.endswith("weight")
            values = 1 + 0.2 * values if is_norm else values / find_divisor(name, parameter)
            parameter.copy_(values.float().double())


def stored(tensors):
    return {name: tensor.detach().float().contiguous() for name, tensor in tensors.items()}
