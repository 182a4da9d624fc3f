"""parity/data/optimizer_8bit.safetensors: 8-bit optimizer states of bitsandbytes, on the CPU (bitsandbytes_cpu.py). It holds

    map.signed, map.positive                        create_dynamic_map
    NAME.values                                     fp32 [blocks, 256]
    NAME.codes, NAME.absmax, NAME.expanded          quantize_blockwise and dequantize_blockwise of them, by NAME.map
    steps.start, steps.gradient.I                   fp32 [4128]: a weight, and the gradient of step I
    steps.weight.I                                  after step I of AdamW8bit
    steps.first_codes, .first_absmax, .second_codes, .second_absmax      after the last step
"""

import bitsandbytes
import torch
from bitsandbytes import functional
from safetensors.torch import save_file

from library.bitsandbytes_cpu import use_pytorch_implementations

BLOCK = 256
STEPS = 5


def code_cases(generator):
    def normal(blocks, scale=1.0):
        return torch.randn(blocks, BLOCK, generator=generator) * scale

    spread = normal(4) * 10 ** (torch.rand(4, BLOCK, generator=generator) * -9)
    zeros = normal(3)
    zeros[1] = 0
    zeros[2, ::3] = 0
    return {
        "normal": (normal(4), True),
        "spread": (spread, True),
        "zeros": (zeros, True),
        "tiny": (normal(2, 1e-30), True),
        "squares": (normal(4).square(), False),
        "spread_squares": (spread.square(), False),
        "zero_squares": (zeros.square(), False),
    }


def steps(tensors, generator):
    elements = 16 * BLOCK + 32  # the last block is not full
    weight = torch.nn.Parameter(torch.randn(elements, generator=generator))
    tensors["steps.start"] = weight.detach().clone()
    optimizer = bitsandbytes.optim.AdamW8bit([weight], lr=1e-2, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.1)
    for step in range(STEPS):
        weight.grad = torch.randn(elements, generator=generator) * 10 ** (torch.rand(elements, generator=generator) * -2)
        tensors[f"steps.gradient.{step}"] = weight.grad.clone()
        optimizer.step()
        tensors[f"steps.weight.{step}"] = weight.detach().clone()
    state = optimizer.state[weight]
    assert state["state1"].dtype == torch.uint8
    for name, codes, absmax in (("first", "state1", "absmax1"), ("second", "state2", "absmax2")):
        tensors[f"steps.{name}_codes"] = state[codes].clone()
        tensors[f"steps.{name}_absmax"] = state[absmax].clone()


def make(tests):
    library = use_pytorch_implementations()  # as long as this lives
    generator = torch.Generator().manual_seed(6)
    maps = {True: functional.create_dynamic_map(signed=True), False: functional.create_dynamic_map(signed=False)}
    tensors = {"map.signed": maps[True], "map.positive": maps[False]}
    for name, (values, signed) in code_cases(generator).items():
        codes, absmax = torch.ops.bitsandbytes.quantize_blockwise(values, maps[signed], BLOCK)
        expanded = torch.ops.bitsandbytes.dequantize_blockwise(codes, absmax, maps[signed], BLOCK, torch.float32)
        tensors |= {f"{name}.values": values, f"{name}.codes": codes, f"{name}.absmax": absmax,
                    f"{name}.expanded": expanded}
    steps(tensors, generator)
    del library
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tests / "parity" / "data" / "optimizer_8bit.safetensors")
