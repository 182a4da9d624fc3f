"""What the make_*_goldens.py scripts share: PNG files and EXIF data by hand, and JSON with a case per line."""

import io
import json
import pathlib
import struct
import zlib

import PIL.Image

ORIENTATION_TAG = 0x0112


def saved(image: PIL.Image.Image, kind: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def exif(orientation: int) -> PIL.Image.Exif:
    tags = PIL.Image.Exif()
    tags[ORIENTATION_TAG] = orientation
    return tags


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def raw_png(width: int, height: int, depth: int, colour: int, rows: bytes, *chunks: bytes, interlace: int = 0, level: int = 9) -> bytes:
    """Writes a PNG of a kind that Pillow does not write. `rows` include their filter bytes."""
    head = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlace))
    body = png_chunk(b"IDAT", zlib.compress(rows, level))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(chunks) + body + png_chunk(b"IEND", b"")


def write_cases(path: pathlib.Path, value: list | dict) -> None:
    """Writes one case per line, so that diffs are small."""
    def lines(cases):
        return "[\n" + ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases) + "\n]"

    if isinstance(value, dict):
        parts = [f"{json.dumps(key)}: {lines(part) if isinstance(part, list) else json.dumps(part)}" for key, part in value.items()]
        path.write_text("{\n" + ",\n".join(parts) + "\n}\n")
    else:
        path.write_text(lines(value) + "\n")
