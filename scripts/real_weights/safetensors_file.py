"""Writes tensors to a safetensors file without PyTorch, also as bfloat16, which NumPy lacks."""

import json

import numpy as np

CODES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


def to_bytes(values, dtype):
    """Rounds fp32 values to nearest, ties to even."""
    values = np.ascontiguousarray(values, dtype=np.float32)
    if dtype == "bfloat16":
        bits = values.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).tobytes()
    return values.astype(dtype).tobytes()


def write(path, tensors, dtype):
    """Writes a safetensors file. `tensors`: name → fp32 array. https://github.com/huggingface/safetensors describes the format."""
    width = 4 if dtype == "float32" else 2
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, values in tensors.items():
        begin, end = end, end + values.size * width
        header[name] = {"dtype": CODES[dtype], "shape": list(values.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for values in tensors.values():
            file.write(to_bytes(values, dtype))
