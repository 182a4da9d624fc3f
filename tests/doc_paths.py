#!/usr/bin/env python3
"""Checks that every file that README.md and docs/**/*.md mention, in backticks or as a link, exists, and every test (`Suite.Test`).

    doc_paths.py CHECKOUT
"""
import pathlib
import re
import sys

from prose import list_pages

NAMED = re.compile(r"`((?:src|include|tests|docs|scripts|bench|configs|cmake|packaging)/[\w./-]*[\w])`|\]\((?!https?:)([^)#]+)[^)]*\)")
TEST_NAME = re.compile(r"`([A-Z]\w+\.[A-Z]\w+)`")
DEFINED_TEST = re.compile(r"\bTEST(?:_[FP])?\((\w+),\s*(\w+)\)")


def list_tests(root: pathlib.Path) -> set[str]:
    return {f"{suite}.{name}" for file in (root / "tests").rglob("*.cpp") for suite, name in DEFINED_TEST.findall(file.read_text(errors="replace"))}


def missing(root: pathlib.Path) -> list[str]:
    result = []
    tests = list_tests(root)
    for document in list_pages(root):
        for in_backticks, linked in NAMED.findall(document.read_text()):
            path = root / in_backticks if in_backticks else document.parent / linked
            if not path.exists():
                result.append(f"{document.relative_to(root)}: {in_backticks or linked} does not exist")
        result += [f"{document.relative_to(root)}: no test is named {name}" for name in TEST_NAME.findall(document.read_text()) if name not in tests]
    return result


if __name__ == "__main__":
    problems = missing(pathlib.Path(sys.argv[1]))
    print("\n".join(problems) or "documents: all mentioned files exist")
    sys.exit(bool(problems))
