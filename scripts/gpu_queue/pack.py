"""Reduces the checkout and fills gpu-queue/, so that both fit what a GPU machine accepts: 64 MiB together per call."""

import json
import os
import shutil
import subprocess

from harness import inputs
from state import git

CARRIED = inputs.ROOT / "gpu-queue"
LIMIT_BYTES = 64 * 2 ** 20
# What the queue reads of the checkout: scripts, presets, the peers, and for gpu_tests their cases without expected tensors.
CHECKOUT = ["/*", "!/src/", "!/include/", "!/docs/", "!/packaging/", "!/tests/", "/tests/parity/data/*/", "/tests/parity/reference/",
            "/tests/gpu/", "!/tests/parity/data/*/expected.safetensors"]


class PackFailed(Exception):
    pass


def files_below(folder):
    return [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]


def size_of(paths):
    return sum(path.stat().st_size for path in paths)


def checkout_bytes():
    """Returns the size of the files that travel: tracked or not ignored."""
    listed = git("ls-files", "-z", "--cached", "--others", "--exclude-standard").stdout.split("\0")
    return size_of([inputs.ROOT / name for name in set(listed) if name and (inputs.ROOT / name).is_file()])


def reduce_checkout():
    """Removes what the queue does not read from the working tree. `restore_checkout` brings it back."""
    ended = git("sparse-checkout", "set", "--no-cone", *CHECKOUT)
    if ended.returncode != 0:
        raise PackFailed(f"git sparse-checkout: {ended.stderr.strip()}")


def restore_checkout():
    ended = git("sparse-checkout", "disable")
    if ended.returncode != 0:
        raise PackFailed(f"git sparse-checkout disable: {ended.stderr.strip()}")


def build_portable():
    """Builds the portable programs and the two that measure kernels into gpu-queue/portable."""
    folder = CARRIED / "portable"
    build = inputs.ROOT / "build" / "portable"
    subprocess.run(["scripts/make_portable.sh", folder], cwd=inputs.ROOT, check=True)
    subprocess.run(["cmake", "--build", build, "--target", "kernel_speed", "kernel_times"], cwd=inputs.ROOT, check=True)
    for name in ("kernel_speed", "libvlmtrain_kernel_times.so"):
        subprocess.run(["strip", "--strip-unneeded", "-o", folder / name, build / name], check=True)


def write_state(queue):
    CARRIED.mkdir(exist_ok=True)
    (CARRIED / "queue.json").write_text(json.dumps(queue.to_pack(), indent=1) + "\n")


def folders_of(entries):
    """Returns the carried folders that the entries need, in order, without repetition."""
    return list(dict.fromkeys(name for entry in entries for name in entry.carry))


def remove_unneeded(entries):
    """Removes folders of gpu-queue/ that no chosen entry needs, so that they do not travel."""
    for path in CARRIED.iterdir():
        if path.is_dir() and path.name not in folders_of(entries):
            shutil.rmtree(path)


def describe(entries):
    """Returns the lines that `pack` prints, and whether everything fits one call."""
    checkout = checkout_bytes()
    lines = [f"checkout {checkout / 2 ** 20:.1f} MiB"]
    total = checkout + size_of([CARRIED / "queue.json"])
    for name in folders_of(entries):
        folder = CARRIED / name
        if not folder.exists():
            lines.append(f"gpu-queue/{name}: missing")
            continue
        size = size_of(files_below(folder))
        total += size
        lines.append(f"gpu-queue/{name} {size / 2 ** 20:.1f} MiB")
    lines.append(f"together {total / 2 ** 20:.1f} MiB of {LIMIT_BYTES // 2 ** 20}")
    return lines, total <= LIMIT_BYTES
