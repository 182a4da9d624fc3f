#!/usr/bin/env python3
"""Samples names and files for a reader who has not seen the code, to test whether an engineer of the field understands them.

    reading_sample.py SEED [--names 100] [--files 30] [--checkout DIR]
    reading_sample.py SEED --names 150 --others DIR... [--other-names 50]

Prints JSON: `names`, each with its kind and the place of its declaration, and `files`, paths. Both are sampled with random.Random(SEED)
from src and include, so the sample is reproducible; the seed is a commit hash. With --others, checkouts of other projects, `names` are
mixed with theirs, to tell a reader's strictness from the names'. docs/benchmarks/language.md has the answers.
"""

import argparse
import json
import random
import re
import subprocess
from pathlib import Path

SUFFIXES = (".h", ".cpp", ".cu", ".cuh")
OTHER_FOLDERS = ("db", "include", "src", "table", "util")  # of leveldb and llmq
TYPE = re.compile(r"^\s*(?:template <[^>]*>\s*)?(?:class|struct|enum class|enum)\s+([A-Za-z_]\w*)[^;]*\{", re.MULTILINE)
ALIAS = re.compile(r"^\s*using\s+([A-Za-z_]\w*)\s*=", re.MULTILINE)
FUNCTION = re.compile(r"^[ \t]*(?:[\w:<>,*&\[\]]+[ \t]+)+[*&]*(?:\w+::)*(\w+)\([^;{}]*\)[^;{}=]*[;{]", re.MULTILINE)
CONSTANT = re.compile(r"\b(k[A-Z]\w*)\b")
VARIABLE = re.compile(r"^[ \t]+(?:const |constexpr |static |mutable )*(?:[A-Za-z_][\w:<>,*& ]*[\w>&*])[ \t]+([a-z]\w*)(?:\{| =|;|\()", re.MULTILINE)
KEYWORDS = frozenset("""break case catch const constexpr continue default delete do else explicit for friend if inline namespace new operator
    private public return sizeof static static_assert switch template throw try typedef typename union using virtual while""".split())


def find_names(text):
    """Returns (kind, name, offset) of the declarations in a file, found by regular expressions."""
    code = re.sub(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"", lambda match: " " * len(match[0]), text, flags=re.DOTALL)
    for kind, pattern in (("type", TYPE), ("type", ALIAS), ("function", FUNCTION), ("constant", CONSTANT), ("variable", VARIABLE)):
        for match in pattern.finditer(code):
            is_initializer = kind == "function" and match[1].endswith("_")  # of a member, in a constructor
            if match[1] not in KEYWORDS and len(match[1]) > 2 and not is_initializer:
                yield kind, match[1], match.start(1)


def collect_names(checkout, files):
    """Returns {(kind, name): place of the first declaration}."""
    names = {}
    for file in files:
        text = (checkout / file).read_text(errors="replace")
        for kind, name, offset in find_names(text):
            names.setdefault((kind, name), f"{file}:{text.count(chr(10), 0, offset) + 1}")
    # A declaration `type name(…)` matches both patterns.
    return {(kind, name): place for (kind, name), place in names.items() if kind != "variable" or ("function", name) not in names}


def list_files(checkout, folders, suffixes):
    listed = subprocess.run(["git", "-C", checkout, "ls-files", *folders], check=True, capture_output=True, text=True).stdout
    return [name for name in listed.splitlines() if name.endswith(suffixes)]


def to_json(names, keys):
    return [{"kind": kind, "name": name, "declared": names[kind, name]} for kind, name in keys]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seed")
    parser.add_argument("--names", type=int, default=100)
    parser.add_argument("--files", type=int, default=30)
    parser.add_argument("--checkout", type=Path, default=Path("."))
    parser.add_argument("--others", type=Path, nargs="+", default=[], metavar="DIR")
    parser.add_argument("--other-names", type=int, default=50)
    options = parser.parse_args()
    files = sorted(name for name in list_files(options.checkout, ("src", "include"), SUFFIXES) if "_headers/" not in name)
    names = collect_names(options.checkout, files)
    source = random.Random(options.seed)
    result = {"seed": options.seed, "of_names": len(names), "of_files": len(files)}
    result["names"] = to_json(names, source.sample(sorted(names), options.names))
    if options.others:
        others = {}
        for checkout in options.others:
            listed = list_files(checkout, OTHER_FOLDERS, (*SUFFIXES, ".cc", ".hpp"))
            others.update(collect_names(checkout, [file for file in listed if "test" not in file]))
        other_names = to_json(others, source.sample(sorted(others), options.other_names))
        result["names"] += [{**name, "is_other": True} for name in other_names]
        source.shuffle(result["names"])
        result["of_other_names"] = len(others)
    else:
        result["files"] = source.sample(files, options.files)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
