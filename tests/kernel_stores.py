"""Checks that kernels with packs of 16-bit values store no single values. nvcc may split a store into eight, which reduces a
GPU's write bandwidth to a third with the same result.

    python3 tests/kernel_stores.py NVCC SOURCE_DIR
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

# A kernel's entry in PTX up to the end of its body; and the size of its pack in the mangled name, as in `rope_kernel<__half, 8>`.
ENTRY = re.compile(r"\.entry (\w+)\(.*?\n}\n", re.DOTALL)
COUNT = re.compile(r"(?:6__half|13__nv_bfloat16)Li(\d+)E")
SINGLE = re.compile(r"st\.global(?:\.\w+)*\.[bus]16")


def single_stores(ptx):
    """Returns (kernel, number of single stores) of violating kernels with packs, and the number of kernels with packs."""
    bad, seen = [], 0
    for entry in ENTRY.finditer(ptx):
        count = COUNT.search(entry.group(1))
        if count is None or int(count.group(1)) < 2:
            continue
        seen += 1
        singles = sum("{" not in line for line in entry.group(0).splitlines() if SINGLE.search(line))
        if singles:
            bad.append((entry.group(1), singles))
    return bad, seen


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    nvcc, root = Path(sys.argv[1]), Path(sys.argv[2])
    bad, seen = [], 0
    with tempfile.TemporaryDirectory() as folder:
        for source in sorted((root / "src" / "kernels" / "cuda").glob("*.cu")):
            ptx = Path(folder) / "kernel.ptx"
            command = [nvcc, "-std=c++20", "-O3", "-arch=sm_80", "-DVLMTRAIN_KERNELS_VERSION=0", f"-I{root / 'include'}", f"-I{root / 'src'}", "-ptx", source, "-o", ptx]
            subprocess.run(command, check=True)
            stores, looked_at = single_stores(ptx.read_text())
            bad, seen = bad + stores, seen + looked_at
    for name, singles in bad:
        print(f"{name}: {singles} stores of single 16-bit values; use store() of src/kernels/cuda/primitives.h")
    print(f"{seen} kernels with packs")
    return 1 if bad or seen < 20 else 0


if __name__ == "__main__":
    sys.exit(main())
