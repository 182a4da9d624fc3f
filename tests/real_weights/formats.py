"""The formats of quantized weights in PyTorch, as bitsandbytes defines them: NF4 with double quantization, and LLM.int8's rows."""

import torch

# Quantiles of a normal distribution (bitsandbytes/functional.py, get_4bit_type).
NF4 = (-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
       -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
       0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0)  # fmt: skip
NF4_BLOCK, ABSMAX_BLOCK = 64, 256
INT8_LARGEST = 127.0
INT8_STEP = 7.874015718698502e-3  # 1 / 127 with the digits that bitsandbytes multiplies by


def dynamic_map():
    """The 256 values that absmax are rounded to (bitsandbytes/functional.py, create_dynamic_map)."""
    values = [0.0, 1.0]
    for exponent in range(7):
        borders = torch.linspace(0.1, 1, 2**exponent + 1, dtype=torch.float32)
        means = 10 ** (exponent - 6) * ((borders[:-1] + borders[1:]) / 2.0)
        values += means.tolist() + (-means).tolist()
    return torch.tensor(sorted(values), dtype=torch.float32)


def nearest(values, table):
    """Indices of the nearest entries of a sorted table; of two that are equally near the lower one."""
    borders = (table[1:] + table[:-1]) / 2
    return torch.bucketize(values, borders)


def in_blocks(values, size):
    """fp32 [blocks, size], padded with zeros."""
    return torch.nn.functional.pad(values.flatten(), (0, -values.numel() % size)).view(-1, size)


def round_absmax(absmax):
    """Absmax of blocks, less their mean, as 8-bit values in blocks of their own."""
    table, offset = dynamic_map(), absmax.mean()
    blocks = in_blocks(absmax - offset, ABSMAX_BLOCK)
    largest = blocks.abs().amax(1, keepdim=True)
    rounded = table[nearest(blocks / largest.clamp(min=torch.finfo(torch.float32).tiny), table)] * largest
    return rounded.flatten()[: absmax.numel()] + offset


def nf4_values(weight):
    """What NF4 holds of an fp32 weight."""
    table, blocks = torch.tensor(NF4), in_blocks(weight, NF4_BLOCK)
    absmax = blocks.abs().amax(1)
    indices = nearest(blocks / absmax.clamp(min=torch.finfo(torch.float32).tiny)[:, None], table)
    values = table[indices] * round_absmax(absmax)[:, None]
    return values.flatten()[: weight.numel()].view_as(weight)


def int8_values(weight):
    """What rows of int8 hold of a weight, which goes through fp16 first."""
    rows = weight.half().float()
    absmax = rows.abs().amax(1, keepdim=True)
    scale = (1 / absmax.masked_fill(absmax == 0, 1)) * INT8_LARGEST
    return (rows * scale).round() * absmax * INT8_STEP


VALUES = {"nf4": nf4_values, "int8": int8_values}


def quantize_linears(model, values):
    """Replaces the weights of all Linears but the output projection, as transformers' BitsAndBytesConfig does. Returns their number."""
    output = model.get_output_embeddings()
    linears = [module for module in model.modules() if isinstance(module, torch.nn.Linear) and module is not output]
    for module in linears:
        module.weight.data = values(module.weight.data.float()).to(module.weight.dtype)
    return len(linears)
