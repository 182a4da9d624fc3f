"""Compares two sets of references file by file: python diff_references.py OLD NEW

OLD and NEW are two copies of ../../data, made on one machine, such as with two versions of transformers. Two processors round
differently, so references of two machines say nothing about versions. Prints every file that differs with what differs in it;
tensors are compared to the bit. Exit code 0: equal; 1: not.
"""

import difflib
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file


def differing_tensors(old, new):
    before, after = load_file(old), load_file(new)
    return [name for name in sorted(before.keys() | after.keys()) if name not in before or name not in after or not torch.equal(before[name], after[name])]


def differing_lines(old, new):
    lines = difflib.unified_diff(old.read_text().splitlines(), new.read_text().splitlines(), n=0, lineterm="")
    return [line for line in lines if not line.startswith(("---", "+++", "@@"))]


def difference(old, new):
    """What differs, in a line; empty: nothing."""
    if not old.exists() or not new.exists():
        return f"only in {'NEW' if new.exists() else 'OLD'}"
    if old.read_bytes() == new.read_bytes():
        return ""
    if new.suffix == ".safetensors":
        names = differing_tensors(old, new)
        return f"{len(names)} tensors: {', '.join(names[:5])}" if names else ""
    try:
        return " ".join(differing_lines(old, new))[:400]
    except UnicodeDecodeError:
        return "bytes"


def main():
    old, new = map(Path, sys.argv[1:])
    names = sorted({file.relative_to(folder) for folder in (old, new) for file in folder.rglob("*") if file.is_file()})
    differences = [(name, text) for name in names if (text := difference(old / name, new / name))]
    for name, text in differences:
        print(f"{name}: {text}")
    print(f"{len(names)} files, {len(differences)} of them differ")
    sys.exit(1 if differences else 0)


if __name__ == "__main__":
    main()
