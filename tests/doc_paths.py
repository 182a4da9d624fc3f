#!/usr/bin/env python3
"""Checks that named files exist: in README.md and docs/**/*.md those in backticks and links, and every test (`Suite.Test`);
in sources those with a path from the root. A line that says "at commit" names a file of that commit.

    doc_paths.py CHECKOUT
"""
import pathlib
import re
import sys

from prose import list_pages

NAMED = re.compile(r"`((?:src|include|tests|docs|scripts|bench|configs|cmake|packaging)/[\w./-]*[\w])`|\]\((?!https?:)([^)#]+)[^)]*\)")
IN_SOURCE = re.compile(r"(?<![\w./-])((?:src|include|tests|docs|scripts|bench|configs|cmake|packaging)/[\w./-]*\.(?:h|cpp|cu|py|sh|md|cmake|json|tsv))\b")
SOURCES = {".h", ".cpp", ".cu", ".py", ".sh", ".cmake"}
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
    return result + missing_in_sources(root)


def missing_in_sources(root: pathlib.Path) -> list[str]:
    result = []
    for folder in ("src", "include", "tests", "bench", "scripts", "cmake"):
        for file in sorted((root / folder).rglob("*")):
            name = str(file.relative_to(root))
            # Scripts in tests/ name files that they make, and one script a file of llama.cpp.
            if file.suffix not in SOURCES or file.match("tests/*.py") or name == "scripts/real_weights/gemma3.py":
                continue
            for number, line in enumerate(file.read_text(errors="replace").splitlines(), 1):
                paths = [] if "http" in line or "at commit" in line else IN_SOURCE.findall(line)
                # NAME and the like are placeholders.
                result += [f"{name}:{number}: {path} does not exist" for path in paths if not (root / path).exists() and not re.search(r"/[A-Z]+\.", path)]
    return result


if __name__ == "__main__":
    problems = missing(pathlib.Path(sys.argv[1]))
    print("\n".join(problems) or "documents: all mentioned files exist")
    sys.exit(bool(problems))
