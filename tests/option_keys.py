#!/usr/bin/env python3
"""Checks that the code spells the keys of the configuration in one place, include/vlmtrain/base/option_keys.h: elsewhere, string
literals contain no key, except in declarations of options (`table.add…`), whose documentation names other options. Checks also
that each constant is declared as an option exactly once. Test: option_keys.

    tests/option_keys.py [CHECKOUT]
"""
import pathlib
import re
import sys

KEYS_HEADER = "include/vlmtrain/base/option_keys.h"
# Fingerprints of old checkpoints have these names, which do not change with a key.
STORED_NAMES = "include/vlmtrain/train/saved_settings.h"
TOKEN = re.compile(r'//[^\n]*|#include[^\n]*|"(?:[^"\\\n]|\\.)*"')
CONSTANT = re.compile(r'string_view (k\w+) = "([a-z_]+)\.([a-z0-9_.]+)";')
DECLARATION = re.compile(r"(?:\btable\.add(?:_enum|_structured_option)?|\badd_axes_option<\w+>)\(\s*(?:table,\s*)?(keys::\w+::k\w+)")


def find_spelled_keys(text: str, pattern: re.Pattern) -> list[tuple[int, str]]:
    """Returns the line and key of each key in a string literal."""
    spelled = []
    for token in TOKEN.finditer(text):
        if not token.group().startswith('"'):
            continue
        for match in pattern.finditer(token.group()):
            spelled.append((text.count("\n", 0, token.start()) + 1, match.group()))
    return spelled


def main(root: pathlib.Path) -> int:
    constants = {f"keys::{section}::{name}": f"{section}.{rest}" for name, section, rest in CONSTANT.findall((root / KEYS_HEADER).read_text())}
    keys = sorted(map(re.escape, constants.values()), key=len, reverse=True)
    pattern = re.compile(rf"(?<![\w.])(?:{'|'.join(keys)})(?!\w|\.[a-z])")
    errors = []
    declared = []
    for folder in ("include", "src"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in (".h", ".cpp"):
                continue
            name = str(path.relative_to(root))
            text = path.read_text()
            declared += DECLARATION.findall(text)
            if name in (KEYS_HEADER, STORED_NAMES) or DECLARATION.search(text):
                continue
            errors += [f"{name}:{line}: spells {key}; use its constant in {KEYS_HEADER}" for line, key in find_spelled_keys(text, pattern)]
    for constant, key in constants.items():
        if declared.count(constant) != 1:
            errors.append(f"{KEYS_HEADER}: {constant} ({key}) is declared {declared.count(constant)} times; declare an option for it once")
    for constant in set(declared) - set(constants):
        errors.append(f"{constant}: is declared as an option and has no key in {KEYS_HEADER}")
    print("\n".join(errors) or f"{len(constants)} keys, each spelled and declared once")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent)))
