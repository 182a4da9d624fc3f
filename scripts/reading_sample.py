#!/usr/bin/env python3
"""Samples names and files for a reader who has not seen the code, to test whether an engineer of the field understands them.

    reading_sample.py COMMIT [--names 100] [--files 30] [--checkout DIR]

Prints JSON: `names`, each with its kind and the place of its declaration, and `files`, paths. Both are sampled with random.Random(COMMIT)
from src and include, so the sample is reproducible. docs/benchmarks/language.md has the answers of two readers.
"""

import argparse
import json
import random
import re
import subprocess
from pathlib import Path

SUFFIXES = (".h", ".cpp", ".cu", ".cuh")
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit")
    parser.add_argument("--names", type=int, default=100)
    parser.add_argument("--files", type=int, default=30)
    parser.add_argument("--checkout", type=Path, default=Path("."))
    options = parser.parse_args()
    listed = subprocess.run(["git", "-C", options.checkout, "ls-files", "src", "include"], check=True, capture_output=True, text=True).stdout
    files = sorted(name for name in listed.splitlines() if name.endswith(SUFFIXES) and "_headers/" not in name)
    names = {}
    for file in files:
        text = (options.checkout / file).read_text()
        for kind, name, offset in find_names(text):
            names.setdefault((kind, name), f"{file}:{text.count(chr(10), 0, offset) + 1}")
    # A declaration `type name(…)` matches both patterns.
    names = {(kind, name): place for (kind, name), place in names.items() if kind != "variable" or ("function", name) not in names}
    source = random.Random(options.commit)
    drawn_names = source.sample(sorted(names), options.names)
    drawn_files = source.sample(files, options.files)
    print(json.dumps({"commit": options.commit, "of_names": len(names), "of_files": len(files), "files": drawn_files,
                      "names": [{"kind": kind, "name": name, "declared": names[kind, name]} for kind, name in drawn_names]}, indent=1))


if __name__ == "__main__":
    main()
