#!/usr/bin/env python3
"""Checks the size of the checkout: all tracked files together, and the test data and presets of each model family.

    checkout_size.py CHECKOUT

A GPU machine accepts 64 MiB for the checkout and the built programs together (docs/contributing/testing.md). Exit code 77: no git.
"""
import collections
import json
import pathlib
import sys

from git_files import tracked_files

CHECKOUT_BYTES = 45 * 2**20
FAMILY_BYTES = 1_000_000  # budget of a family that is not listed
# Budgets of families that predate the default budget, and of data without a family; they must not grow.
LISTED_BYTES = {
    "qwen3_vl": 4_100_000, "idefics3": 3_600_000, "gemma3": 3_000_000, "qwen2_5_vl": 2_900_000, "tiny_vit": 2_600_000,
    "internvl": 2_500_000, "llava": 2_500_000, "nanovlm": 2_000_000, "smolvlm": 1_600_000, "sam": 1_200_000,
}
FOLDERS = (("tests", "parity", "data"), ("configs", "models"))
NESTED = ("lora", "quantization")  # folders of cases, each with the name of its base in case.json


def family_of_folder(folder: pathlib.Path) -> str:
    """Returns the model type of a case or preset (nanoVLM's have none); the folder's name if it has no model."""
    for config in (folder / "checkpoint/config.json", folder / "config.json"):
        if config.exists():
            return json.loads(config.read_text()).get("model_type", "nanovlm")
    case = folder / "case.json"
    base = json.loads(case.read_text()).get("base") if case.exists() else None
    return family_of_folder(folder.parent.parent / base) if base else folder.name


def find_family(path: pathlib.Path, root: pathlib.Path) -> str | None:
    """Returns the family of a data file; None if it belongs to no family."""
    names = path.relative_to(root).parts
    for folder in FOLDERS:
        below = names[len(folder) :]
        if names[: len(folder)] == folder and below:
            depth = 2 if below[0] in NESTED and len(below) > 2 else 1
            return family_of_folder(root.joinpath(*folder, *below[:depth]))
    return None


def problems(root: pathlib.Path) -> list[str]:
    sizes = {path: path.stat().st_size for path in (root / name for name in tracked_files(root))}
    families = collections.Counter()
    for path, size in sizes.items():
        families[find_family(path, root)] += size
    del families[None]
    total = sum(sizes.values())
    result = [f"the checkout has {total:,} bytes, at most {CHECKOUT_BYTES:,} are allowed"] if total > CHECKOUT_BYTES else []
    for family, size in families.most_common():
        most = LISTED_BYTES.get(family, FAMILY_BYTES)
        if size > most:
            result.append(f"{family}: its test data and presets have {size:,} bytes, at most {most:,} are allowed")
    print(f"checkout: {total:,} bytes; largest: " + ", ".join(f"{name} {size:,}" for name, size in families.most_common(40)))
    return result


if __name__ == "__main__":
    result = problems(pathlib.Path(sys.argv[1]).resolve())
    print("\n".join(result) or "checkout size: within its budgets")
    sys.exit(bool(result))
