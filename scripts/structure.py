#!/usr/bin/env python3
"""Prints the structure of the code as it is: for each part its floor (above all parts that it includes), files, lines, its
longest file, and which parts it includes, with the number of includes.

    structure.py [CHECKOUT]
"""
import collections
import pathlib
import re
import sys

INCLUDE = re.compile(r'^\s*#\s*include\s*"vlmtrain/([a-z0-9_]+)/', re.MULTILINE)


def sources(root: pathlib.Path, part: str) -> list[pathlib.Path]:
    folders = (root / "src" / part, root / "include" / "vlmtrain" / part)
    return [file for folder in folders for file in sorted(folder.rglob("*")) if file.suffix in (".h", ".cpp")]


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


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "."))
