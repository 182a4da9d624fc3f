"""Reads safetensors and compares tensors, with Python's standard library only."""

import array
import json
import math
import struct
import sys


def read(path):
    """Returns tensors by name, each as a flat sequence of floats. Integers and bytes are skipped."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        if entry["dtype"] in DECODERS:
            tensors[name] = DECODERS[entry["dtype"]](data[begin:end])
    return tensors


def read_joined(paths):
    """Returns the tensors of several files that have parts of tensors: NAME@512 begins with element 512 of NAME."""
    pieces = {}
    for path in paths:
        for key, values in read(path).items():
            name, _, first = key.partition("@")
            pieces.setdefault(name, []).append((int(first or 0), values))
    joined = {}
    for name, parts in pieces.items():
        parts.sort(key=lambda part: part[0])
        joined[name] = array.array("f", (value for _, values in parts for value in values))
    return joined


def floats(data):
    values = array.array("f")
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def bfloat16(data):
    wide = bytearray(2 * len(data))
    wide[2::4], wide[3::4] = data[0::2], data[1::2]
    return floats(bytes(wide))


def float16(data):
    return array.array("f", struct.unpack(f"<{len(data) // 2}e", data))


DECODERS = {"F32": floats, "BF16": bfloat16, "F16": float16}


def norm(values):
    return math.sqrt(sum(x * x for x in values))


def distance(a, b):
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b)))


def whole_norm(tensors):
    return math.sqrt(sum(norm(values) ** 2 for values in tensors.values()))


def whole_distance(a, b):
    return math.sqrt(sum(distance(a[name], b[name]) ** 2 for name in b))


def same_names(a, b):
    """Returns the first difference between the names and sizes of tensors; empty if they are equal."""
    for name in sorted(set(a) | set(b)):
        if name not in a or name not in b:
            return f"only one of both has {name}"
        if len(a[name]) != len(b[name]):
            return f"{name} has {len(a[name])} and {len(b[name])} elements"
    return ""
