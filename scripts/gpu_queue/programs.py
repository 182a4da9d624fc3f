"""The program under test and the machine it runs on."""

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

from carried import KEPT
from harness import inputs


class Unusable(Exception):
    """Raised if the program, LibTorch or the device is missing."""


def add_libtorch(folder):
    """Adds LibTorch to LD_LIBRARY_PATH, which portable programs search after their own rpath."""
    folder = folder / "torch" if (folder / "torch" / "lib").exists() else folder
    if not (folder / "lib" / "libtorch_cpu.so").exists():
        raise Unusable(f"{folder}: has no lib/libtorch_cpu.so; --libtorch names the folder of LibTorch")
    others = os.environ.get("LD_LIBRARY_PATH")
    os.environ["LD_LIBRARY_PATH"] = str(folder / "lib") + (":" + others if others else "")


def find_python_libtorch():
    code = "import importlib.util as u; s = u.find_spec('torch'); print(s.origin if s else '')"
    origin = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip()
    return Path(origin).parent if origin else None


def default_program():
    """Returns the carried program, or the release build's in the checkout where `pack` ran or on a machine without a carried one."""
    portable = KEPT / "carried" / "portable" / "vlmtrain"
    return portable if portable.exists() and not (inputs.ROOT / "build" / "gpu-queue").exists() else inputs.ROOT / "build" / "release" / "vlmtrain"


def find_core(vlmtrain):
    """Returns the program that needs LibTorch: `vlmtrain` itself answers --version without it."""
    core = vlmtrain.resolve().with_name("vlmtrain-core")
    return core if core.exists() else vlmtrain


def find_gpu_tests(vlmtrain, named=None):
    folder = vlmtrain.resolve().parent
    for path in [named] if named else [folder / "gpu_tests", folder / "tests" / "gpu_tests", folder.parent / "gpu_tests" / "gpu_tests"]:
        if path.exists():
            return path.absolute()
    return None


def start(vlmtrain, libtorch=None):
    """Returns the program's version and digest. Tries Python's own LibTorch if it does not start otherwise."""
    if not vlmtrain.exists():
        raise Unusable(f"{vlmtrain}: does not exist; build it (cmake --build --preset release) or name it with --vlmtrain")
    if libtorch or os.environ.get("VLMTRAIN_LIBTORCH"):
        add_libtorch(libtorch or Path(os.environ["VLMTRAIN_LIBTORCH"]))
    core = find_core(vlmtrain)
    if not os.access(core, os.X_OK) or core.is_dir():
        raise Unusable(f"{core}: is not a program")
    ended = subprocess.run([core, "--version"], capture_output=True, text=True)
    if ended.returncode != 0 and (folder := find_python_libtorch()):
        add_libtorch(folder)
        ended = subprocess.run([core, "--version"], capture_output=True, text=True)
    if ended.returncode != 0:
        raise Unusable(f"{vlmtrain} does not start: {ended.stderr.strip()}; --libtorch names the folder of LibTorch")
    return f"{ended.stdout.strip()}, {hashlib.sha256(core.read_bytes()).hexdigest()[:12]}"


def python_versions():
    """Returns the versions of the packages that peers use, without importing them."""
    from importlib import metadata

    versions = {}
    for name in ("torch", "transformers", "peft", "liger-kernel", "bitsandbytes"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
    return versions


def describe_machine(device):
    """Returns GPU, driver and package versions for a result."""
    versions = python_versions()
    if not device.startswith("cuda"):
        return {"gpu": device, "versions": versions}
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        lines = subprocess.run(query, capture_output=True, text=True, check=True, timeout=20).stdout.strip().splitlines()
        number = int(device.partition(":")[2] or 0)
        name, driver, memory = re.split(r", *", lines[number])
    except (OSError, subprocess.SubprocessError, IndexError, ValueError):
        return {"gpu": "unknown GPU", "versions": versions}
    return {"gpu": f"{name}, {memory}", "versions": {"driver": driver, **versions}}


def check_device(bench):
    """Raises Unusable if the device cannot be opened, so that not every check fails."""
    if bench.is_virtual:
        ended = bench.run(["plan", "--gpu", bench.device.partition(":")[2], "--model", "smolvlm-256m"])
        if ended.code == 2:
            raise Unusable(f"--device {bench.device}: {ended.reason()}")
    elif not bench.is_cpu:
        config = bench.work / "device.yaml"
        checkpoint = bench.checkpoint("smolvlm-tiny")
        bench.write_config(config, {"data.eval": bench.small_data() / "train.json", "training.precision": "fp32"})
        ended = bench.run(["eval", "--config", config, "--checkpoint", checkpoint, "--device", bench.device, "--max-new-tokens", 1, "--json"])
        if ended.code != 0:
            raise Unusable(f"--device {bench.device}: {ended.reason()}")
