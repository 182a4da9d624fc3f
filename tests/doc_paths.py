#!/usr/bin/env python3
"""Checks that every file that README.md and docs/**/*.md mention, in backticks or as a link, exists.

    doc_paths.py CHECKOUT
"""
import pathlib
import re
import sys

NAMED = re.compile(r"`((?:src|include|tests|docs|scripts|bench|configs|cmake|packaging)/[\w./-]*[\w])`|\]\((?!https?:)([^)#]+)[^)]*\)")


def missing(root: pathlib.Path) -> list[str]:
    result = []
    for document in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]:
        for in_backticks, linked in NAMED.findall(document.read_text()):
            path = root / in_backticks if in_backticks else document.parent / linked
            if not path.exists():
                result.append(f"{document.relative_to(root)}: {in_backticks or linked} does not exist")
    return result


if __name__ == "__main__":
    problems = missing(pathlib.Path(sys.argv[1]))
    print("\n".join(problems) or "documents: all mentioned files exist")
    sys.exit(bool(problems))
