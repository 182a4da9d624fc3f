"""Folders that are copied to a GPU machine: compressed, split into pieces that fit a call, and joined there."""

import hashlib
import io
import re
import shutil
import tarfile
import tempfile
from pathlib import Path

from harness import inputs

# On this machine, one folder per call. On the GPU machine, the current call's folder and the kept pieces of earlier calls.
CALLS = inputs.ROOT / "gpu-queue"
KEPT = Path(tempfile.gettempdir()) / "vlmtrain-gpu-queue"
PIECE = re.compile(r"(?P<name>[\w-]+)\.tar\.xz\.(?P<number>\d+)of(?P<count>\d+)")


def compress(folder, archive):
    """Writes `archive` from a folder, unless it is newer than all of its files."""
    newest = max((path.stat().st_mtime for path in folder.rglob("*")), default=0)
    if archive.exists() and archive.stat().st_mtime >= newest:
        return
    partial = archive.with_name(archive.name + ".partial")
    with tarfile.open(partial, "w:xz") as opened:
        opened.add(folder, ".")
    partial.replace(archive)


def write_calls(archives, room, folder):
    """Fills `folder`/call-1, call-2 … with pieces of the archives, at most `room` bytes per call. Returns the folders."""
    shutil.rmtree(folder, ignore_errors=True)
    cuts, remaining, call = [], room, 1  # (archive, offset, bytes, call)
    for archive in archives:
        offset, size = 0, archive.stat().st_size
        while offset < size:
            length = min(size - offset, remaining)
            cuts.append((archive, offset, length, call))
            offset, remaining = offset + length, remaining - length
            if remaining == 0:
                remaining, call = room, call + 1
    for archive, offset, length, call in cuts:
        pieces = [cut for cut in cuts if cut[0] == archive]
        number = pieces.index((archive, offset, length, call)) + 1
        target = folder / f"call-{call}" / f"{archive.name}.{number}of{len(pieces)}"
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(archive, "rb") as file:
            file.seek(offset)
            target.write_bytes(file.read(length))
    return sorted(folder.glob("call-*"))


def receive(folder=CALLS, results_folder=KEPT):
    """Moves this call's folder out of the checkout, and unpacks the archives whose pieces are complete.

    Returns the names of the folders in `kept`/carried.
    """
    pieces = results_folder / "pieces"
    pieces.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("call-*/*"):
        if PIECE.fullmatch(path.name):
            shutil.copyfile(path, pieces / path.name)
    by_name = {}
    for path in pieces.iterdir():
        match = PIECE.fullmatch(path.name)
        by_name.setdefault((match["name"], int(match["count"])), {})[int(match["number"])] = path
    for (name, count), result in by_name.items():
        if len(result) == count:
            unpack(name, [result[number] for number in sorted(result)], results_folder / "carried" / name)
    return sorted(path.name for path in (results_folder / "carried").glob("*") if path.is_dir())


def unpack(name, pieces, folder):
    """Unpacks joined pieces, unless the folder has the same ones."""
    content = b"".join(path.read_bytes() for path in pieces)
    digest = hashlib.sha256(content).hexdigest()
    marker = folder.with_name(name + ".sha256")
    if folder.exists() and marker.exists() and marker.read_text() == digest:
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:xz") as opened:
        opened.extractall(folder)
    marker.write_text(digest)
