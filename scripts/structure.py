#!/usr/bin/env python3
"""Prints the structure of the code: for each part its floor (above all parts that it includes), files, lines, its longest
file, and the parts that it includes, with the number of includes. Then prints statistics: files, median lines of a file,
lines that are neither code nor comment, functions whose names end in `_of`, folders and their files.

    structure.py [CHECKOUT]
"""
import collections
import pathlib
import re
import statistics
import sys

INCLUDE = re.compile(r'^\s*#\s*include\s*"vlmtrain/([a-z0-9_]+)/', re.MULTILINE)
NEITHER = re.compile(r"#\s*include|#\s*pragma once|(inline )?namespace\b|}+\s*// namespace")


def sources(root: pathlib.Path, part: str) -> list[pathlib.Path]:
    folders = (root / "src" / part, root / "include" / "vlmtrain" / part)
    return [file for folder in folders for file in sorted(folder.rglob("*")) if file.suffix in (".h", ".cpp")]


def print_figures(root: pathlib.Path) -> None:
    files = [file for top in ("src", "include") for file in sorted((root / top).rglob("*")) if file.suffix in (".h", ".cpp", ".cu", ".cuh")]
    texts = [file.read_text() for file in files]
    lines = [line.strip() for text in texts for line in text.splitlines()]
    neither = sum(not line or bool(NEITHER.match(line)) for line in lines)
    ending = {name for text in texts for name in re.findall(r"\b([a-z]\w*_of)\(", text)} - {"any_of", "all_of", "none_of"}
    folders = collections.Counter(file.parent.relative_to(root) for file in files)
    large = ", ".join(f"{folder} {count}" for folder, count in folders.most_common() if count > 25)
    print(f"\n{len(files)} files with a median of {statistics.median(len(text.splitlines()) for text in texts):.0f} lines; "
          f"{neither / len(lines):.1%} of {len(lines):,} lines are neither code nor comment (blank, includes, namespaces)\n"
          f"{len(ending)} names of functions end in _of\n{len(folders)} folders; above 25 files: {large or 'none'}")


def main(root: pathlib.Path) -> None:
    parts = (root / "parts.txt").read_text().split()
    floors: dict[str, int] = {}
    total_lines = total_arrows = 0
    print("| part | floor | files | lines | longest file | includes |\n|---|---|---|---|---|---|")
    for part in parts:
        files = sources(root, part)
        lines = {file: len(file.read_text().splitlines()) for file in files}
        arrows = collections.Counter(
            other for file in files for other in INCLUDE.findall(file.read_text()) if other in parts and other != part)
        floors[part] = 1 + max((floors[other] for other in arrows), default=0)
        longest = max(lines, key=lines.get)
        total_lines += sum(lines.values())
        total_arrows += len(arrows)
        print(f"| `{part}` | {floors[part]} | {len(files)} | {sum(lines.values()):,} | "
              f"{longest.name} {lines[longest]} | {', '.join(f'{other} {arrows[other]}' for other in parts if arrows[other])} |")
    print(f"\n{len(parts)} parts on {max(floors.values())} floors, {total_lines:,} lines, {total_arrows} arrows between parts")
    print_figures(root)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "."))
