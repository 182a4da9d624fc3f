"""A file in parts, for ways that carry only so many bytes at a time."""

import hashlib
import shutil

from source import BadSource

CHECKSUM_SUFFIX = ".sha256"


def checksum(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def split(path, count, folder):
    """Writes `count` parts of nearly equal size to `folder`, and a checksum file that sha256sum reads. Returns the paths of the parts."""
    folder.mkdir(parents=True, exist_ok=True)
    size = path.stat().st_size
    written = []
    with open(path, "rb") as file:
        for number in range(1, count + 1):
            part = folder / f"{path.name}.part-{number}-of-{count}"
            part.write_bytes(file.read(size * number // count - size * (number - 1) // count))
            written.append(part)
    (folder / (path.name + CHECKSUM_SUFFIX)).write_text(f"{checksum(path)}  {path.name}\n")
    return written


def has_parts(folder):
    return any(folder.glob("*" + CHECKSUM_SUFFIX))


def join(folder, out):
    """Joins the parts that `split` wrote. Throws BadSource if a part is missing or the checksum differs; `out` is not written then."""
    checksums = sorted(folder.glob("*" + CHECKSUM_SUFFIX))
    if len(checksums) != 1:
        raise BadSource(f"{folder}: has {len(checksums)} files *{CHECKSUM_SUFFIX}; needs one")
    expected, name = checksums[0].read_text().split()
    found = list(folder.glob(f"{name}.part-*-of-*"))
    count = int(found[0].name.rpartition("-of-")[2]) if found else 0
    paths = [folder / f"{name}.part-{number}-of-{count}" for number in range(1, count + 1)]
    missing = [path.name for path in paths if not path.exists()]
    if missing or not paths:
        raise BadSource(f"{folder}: lacks {', '.join(missing) or f'{name}.part-1-of-N'}; copy the missing parts")
    partial = out.with_name(out.name + ".partial")
    with open(partial, "wb") as joined:
        for path in paths:
            with open(path, "rb") as part:
                shutil.copyfileobj(part, joined, 1 << 20)
    if checksum(partial) != expected:
        partial.unlink()
        raise BadSource(f"{folder}: the joined parts have another checksum than {checksums[0].name}; copy them again")
    partial.replace(out)
