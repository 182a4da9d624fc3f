#!/usr/bin/env python3
"""Prints the sources whose includes reach a header of LibTorch, one path a line, relative to the checkout.

    libtorch_sources.py CHECKOUT [FOLDER…]      FOLDERs: src and tests by default

cmake/Parts.cmake compiles these sources in batches of their own, because LibTorch's headers take most of a batch's time.
"""
import pathlib
import re
import sys

INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]', re.MULTILINE)
LIBTORCH = re.compile(r"(ATen|c10|caffe2|torch)/")


class Includes:
    """The includes of a checkout's files. Follows every include, also those of conditions that do not hold."""

    def __init__(self, root: pathlib.Path):
        self.folders = (root / "include", root / "src", root / "tests")
        self.by_file: dict[pathlib.Path, tuple[bool, list[pathlib.Path]]] = {}

    def read(self, file: pathlib.Path) -> tuple[bool, list[pathlib.Path]]:
        """Returns whether the file includes LibTorch itself, and the files of the checkout that it includes."""
        if file not in self.by_file:
            names = INCLUDE.findall(file.read_text())
            candidates = ((folder / name for folder in (*self.folders, file.parent)) for name in names)
            included = [next((path for path in paths if path.is_file()), None) for paths in candidates]
            self.by_file[file] = (any(map(LIBTORCH.match, names)), [path for path in included if path])
        return self.by_file[file]

    def reach_libtorch(self, source: pathlib.Path) -> bool:
        seen, pending = {source}, [source]
        while pending:
            includes_libtorch, files = self.read(pending.pop())
            if includes_libtorch:
                return True
            pending += [file for file in files if file not in seen]
            seen.update(files)
        return False


if __name__ == "__main__":
    checkout = pathlib.Path(sys.argv[1]).resolve()
    includes = Includes(checkout)
    for folder in sys.argv[2:] or ["src", "tests"]:
        for path in sorted((checkout / folder).rglob("*.cpp")):
            if includes.reach_libtorch(path):
                print(path.relative_to(checkout))
