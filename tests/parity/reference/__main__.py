"""Makes the references that the parity tests hold vlmtrain against.

    python3 tests/parity/reference list [CASE…]
    python3 tests/parity/reference make [CASE…] [--out FOLDER]

A module of kinds/ states what it stores, its cases, and how one is made; families/ has a module for each model family. CASE is a
name that `list` prints, or a pattern such as 'qwen*' or 'lora/*'. Without one, all are made in the order in which they depend on
each other: with torch 2.11 those of muon/ (kinds/muon.py), with another all others. requirements.txt has the packages.
FOLDER stands for tests/parity/data: a copy of it in a copy of tests/, where modules/* write their files.
"""

import argparse
import importlib
import os
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # bitsandbytes' code as it is written, operation by operation

import torch

# Modules of kinds/. The cases of those with a slash are named KIND/CASE.
KINDS = ("cases", "modules/", "hidden_states", "lora/", "quantization/", "chats", "documents", "answers/", "muon/")


def find_cases(patterns):
    """Yields the name of each case that a pattern names, and a function that makes it in a folder."""
    for kind in KINDS:
        folder = kind if kind.endswith("/") else ""
        kind_patterns = [p for p in patterns if ("/" in p) == bool(folder) and fnmatchcase(folder, p[: p.rfind("/") + 1])]
        if not kind_patterns:
            continue
        module = importlib.import_module("kinds." + kind.rstrip("/"))
        for name in module.NAMES:
            if any(fnmatchcase(folder + name, pattern) for pattern in kind_patterns):
                yield folder + name, partial(module.make, name)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["list", "make"])
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent.parent / "data")
    arguments = parser.parse_args()
    all_cases = ["muon/*"] if torch.__version__.startswith("2.11") else ["*", "modules/*", "lora/*", "quantization/*", "answers/*"]
    cases = list(find_cases(arguments.cases or all_cases))
    if not cases:
        parser.error(f"no case is named {' or '.join(arguments.cases)}; `list` prints the names")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for name, make in cases:
        print(name, flush=True)
        if arguments.command == "make":
            make(arguments.out.resolve())


if __name__ == "__main__":
    main()
