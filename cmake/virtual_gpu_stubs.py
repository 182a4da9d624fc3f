#!/usr/bin/env python3
"""Generates the rest of a stub library of the virtual GPU: a weak stub for every function of the real library, and a version
script with the real library's symbol versions.

    virtual_gpu_stubs.py --library LIBRARY --version-node NAME --status N --stubs OUT.cpp --map OUT.map [--export PATTERN …]
    virtual_gpu_stubs.py --header cuda.h --status N …
    virtual_gpu_stubs.py --names NAME … --status N …

The functions are those that LIBRARY exports (nm of binutils), that NVIDIA's driver header declares, or that are named; no wheel
ships the driver's libraries. A hand-written function takes precedence over its weak stub.
"""
import argparse
import pathlib
import re
import subprocess


def exported_functions(library: str) -> set[str]:
    lines = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    return {line.split()[2].split("@")[0] for line in lines.splitlines() if line.split()[1] == "T"}


def declared_functions(header: str) -> set[str]:
    """Both names of a function that the header renames (cuMemAlloc is cuMemAlloc_v2 in the library)."""
    text = pathlib.Path(header).read_text(encoding="utf-8")
    declared = re.findall(r"^CUresult CUDAAPI\s+(cu\w+)\(", text, re.MULTILINE)
    renamed = re.findall(r"^\s*#\s*define\s+cu\w+\s+(cu\w+?)\s*$", text, re.MULTILINE)
    return set(declared) | set(renamed)


def main() -> None:
    parser = argparse.ArgumentParser()
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--library")
    source.add_argument("--header")
    source.add_argument("--names", nargs="+")
    parser.add_argument("--version-node", default="", help="the symbols' version; none if left out")
    parser.add_argument("--status", type=int, required=True, help="what an unknown function returns")
    parser.add_argument("--export", action="append", default=[], help="further symbols that stay visible")
    parser.add_argument("--stubs", required=True)
    parser.add_argument("--map", required=True)
    arguments = parser.parse_args()

    if arguments.names:
        functions = set(arguments.names)
    else:
        functions = exported_functions(arguments.library) if arguments.library else declared_functions(arguments.header)
    if not functions:
        raise SystemExit(f"virtual_gpu_stubs.py: no functions in {arguments.library or arguments.header}")
    names = sorted(functions)
    stubs = "".join(f"VLMTRAIN_VGPU_UNKNOWN_CALL({name}, {arguments.status})\n" for name in names)
    pathlib.Path(arguments.stubs).write_text('#include "vgpu/core/instrumentation.h"\n\n' + stubs, encoding="utf-8")
    visible = "".join(f"    {name};\n" for name in names + arguments.export)
    version_script = f"{arguments.version_node} {{\n  global:\n{visible}  local: *;\n}};\n"
    pathlib.Path(arguments.map).write_text(version_script, encoding="utf-8")


if __name__ == "__main__":
    main()
