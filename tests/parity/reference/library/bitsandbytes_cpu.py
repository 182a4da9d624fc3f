"""What bitsandbytes makes of weights on the CPU, by its own PyTorch code.

That code agrees with its CUDA kernels. Its CPU library of 0.50 does not: it looks nested absmax up in a table of 65,536 places and
takes a neighbor of the nearest value for one or two in a thousand, and with AVX-512 it scales rows whose length is a multiple of
16 but not of 64 by the absmax of other blocks.
"""

import bitsandbytes
import torch
from bitsandbytes import functional


def use_pytorch_implementations():
    """Sends bitsandbytes' blockwise operations on the CPU to its own PyTorch code while what it returns lives."""
    library = torch.library.Library("bitsandbytes", "IMPL")
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CompositeExplicitAutograd)
    for name in ("quantize_blockwise", "dequantize_blockwise", "quantize_4bit", "dequantize_4bit"):
        operation = getattr(torch.ops.bitsandbytes, name).default
        library.impl(name, lambda *inputs, operation=operation: operation.redispatch(keys, *inputs), "CPU", allow_override=True)
    return library


def quantize_nf4(weight):
    packed, state = functional.quantize_4bit(weight, blocksize=64, compress_statistics=True, quant_type="nf4")
    return {
        "weight": packed,
        "absmax": state.absmax,
        "nested_absmax": state.state2.absmax,
        "nested_offset": state.offset.view(1),
        "values": functional.dequantize_4bit(packed, state),
    }


def quantize_int8(weight):
    parameter = bitsandbytes.nn.Int8Params(weight, requires_grad=False).to("cpu")
    values = functional.int8_vectorwise_dequant(parameter.data, parameter.SCB).to(weight.dtype)
    zeros = parameter.SCB == 0
    parameter.data[zeros] = 0  # 0 · ∞ as an integer, whatever the processor makes of it
    values[zeros] = 0
    return {"weight": parameter.data, "SCB": parameter.SCB, "values": values}
