#!/usr/bin/env python3
"""Checks the order of the parts: a part includes only its own files and the public headers of parts above it in parts.txt.

    include_order.py CHECKOUT
"""
import pathlib
import re
import sys
import tempfile

# Stub libraries and plug-ins must not depend on LibTorch or the other parts.
ONLY = {"vgpu": {"vlmtrain/memory/gpu_table.h"}, "parquet": {"vlmtrain/io/row_file.h"},
        "nccl": {"vlmtrain/distributed/nccl.h"}, "curl": {"vlmtrain/hub/http.h"}}

INCLUDE = re.compile(r'^\s*#\s*include\s*["<]((?:vlmtrain/)?)([a-z0-9_]+)(/[^">]+)[">]', re.MULTILINE)


def violations(root: pathlib.Path) -> list[str]:
    parts = (root / "parts.txt").read_text().split()
    place = {part: index for index, part in enumerate(parts)}
    result = []
    for folder in (root / "include" / "vlmtrain", root / "src"):
        for source in sorted(folder.rglob("*")):
            if source.suffix not in (".h", ".cpp", ".cu"):
                continue
            part = source.relative_to(folder).parts[0]
            if part not in place:
                result.append(f"{source.relative_to(root)}: {part} is not in parts.txt")
                continue
            public_header = folder.name == "vlmtrain"
            for public, other, rest in INCLUDE.findall(source.read_text()):
                if other not in place:
                    continue  # a library's header
                if not public and (other != part or public_header):
                    result.append(f"{source.relative_to(root)}: includes a private header of {other}")
                elif public and place[other] > place[part]:
                    result.append(f"{source.relative_to(root)}: {part} includes {other}, which is below it in parts.txt")
                elif part in ONLY and other != part and public + other + rest not in ONLY[part]:
                    result.append(f"{source.relative_to(root)}: {part} may include only {sorted(ONLY[part])} of other parts")
    return result


def self_test() -> None:
    """Checks that violations are found: an include of a lower part, of another part's private header, and of a header that
    ONLY does not list."""
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        (root / "parts.txt").write_text("base\nio\nvgpu\n")
        for path, text in {
            "include/vlmtrain/base/a.h": '#include "vlmtrain/io/b.h"\n',
            "include/vlmtrain/io/b.h": '#include "vlmtrain/base/a.h"\n',
            "src/io/c.cpp": '#include "base/hidden.h"\n#include "io/own.h"\n',
            "src/vgpu/d.cpp": '#include "vlmtrain/base/a.h"\n#include "vgpu/own.h"\n',
        }.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        result = violations(root)
        assert len(result) == 3 and "below it in parts.txt" in result[0] and "private" in result[1] and "may include only" in result[2], result


if __name__ == "__main__":
    self_test()
    problems = violations(pathlib.Path(sys.argv[1]))
    print("\n".join(problems) or "include order: every part includes only parts above it")
    sys.exit(bool(problems))
