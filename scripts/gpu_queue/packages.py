"""Python packages of peers that GPU machines lack, in gpu-queue/python: a folder for PYTHONPATH, of PyPI's wheels."""

import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

# Name and version, and a pattern of the files that do not travel: bitsandbytes has 125 MB of libraries, one for each version of CUDA.
# PyTorch's wheels on GPU machines are built with CUDA 13.0.
PACKAGES = {"liger-kernel==0.8.5": r"$^", "bitsandbytes==0.50.2": r".*/libbitsandbytes_(?!cuda130\.|cpu\.).*\.so"}


class DownloadFailed(Exception):
    pass


def download(requirement, folder):
    """Returns the path of a package's wheel."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", folder, requirement]
    ended = subprocess.run(command, capture_output=True, text=True)
    found = list(Path(folder).glob(f"{requirement.partition('==')[0].replace('-', '_')}-*.whl"))
    if ended.returncode != 0 or not found:
        raise DownloadFailed(f"pip download {requirement}: {(ended.stderr.strip().splitlines() or ['no wheel'])[-1]}")
    return found[0]


def unpack(wheel, unneeded, folder):
    """Unpacks the files of a wheel whose names do not match."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if not re.fullmatch(unneeded, name)])


def build(folder):
    """Fills `folder`, unless it has the same packages."""
    done = folder / "packages.txt"
    wanted = "\n".join(PACKAGES) + "\n"
    if done.exists() and done.read_text() == wanted:
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as wheels:
        for requirement, unneeded in PACKAGES.items():
            unpack(download(requirement, wheels), unneeded, folder)
    done.write_text(wanted)
