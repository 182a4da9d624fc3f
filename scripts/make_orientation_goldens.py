#!/usr/bin/env python3
"""Writes images with their orientation in EXIF, in XMP, in both or invalid, and the orientation that Pillow applies.

    make_orientation_goldens.py          (needs Pillow; see SOURCES.md)

tests/image/data/orientations/          images, and orientations.json: for each, the EXIF value that turns the stored
                                        pixels into the result of ImageOps.exif_transpose
"""
import json
import pathlib
import struct
import zlib

import PIL
import PIL.Image
import PIL.ImageOps

from goldens import ORIENTATION_TAG, png_chunk, saved

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "tests/image/data/orientations"
XMP_NAME = b"http://ns.adobe.com/xap/1.0/\0"


def source_image() -> PIL.Image.Image:
    """Draws blocks of 8 pixels with distinct grays, so that JPEG preserves them and all orientations differ."""
    image = PIL.Image.new("L", (24, 16))
    for block in range(6):
        x, y = block % 3 * 8, block // 3 * 8
        image.paste(30 + 40 * block, (x, y, x + 8, y + 8))
    return image.convert("RGB")


def attribute(value: str) -> bytes:
    return f'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="{value}"/></x:xmpmeta>'.encode()


def element(value: str) -> bytes:
    return f"<rdf:Description><tiff:Orientation>{value}</tiff:Orientation></rdf:Description>".encode()


def exif(orientation: int | None) -> bytes:
    """Returns a TIFF block with one entry: the orientation, or the image's width without one."""
    tag, value = (ORIENTATION_TAG, orientation) if orientation is not None else (0x0100, 24)
    return b"II*\0" + struct.pack("<IH", 8, 1) + struct.pack("<HHIHH", tag, 3, 1, value, 0) + struct.pack("<I", 0)


def jpeg(*app1: bytes, after_frame: bytes = b"") -> bytes:
    plain = saved(source_image(), "JPEG", quality=95)
    segment = lambda data: b"\xff\xe1" + struct.pack(">H", len(data) + 2) + data
    start = 2 + 2 + struct.unpack(">H", plain[4:6])[0]  # after JFIF's segment
    whole = plain[:start] + b"".join(segment(data) for data in app1) + plain[start:]
    if not after_frame:
        return whole
    scan = whole.index(b"\xff\xda")
    return whole[:scan] + segment(after_frame) + whole[scan:]


def png(*chunks: bytes, at_end: bool = False) -> bytes:
    plain = saved(source_image(), "PNG")
    place = plain.index(b"IEND") - 4 if at_end else 33
    return plain[:place] + b"".join(chunks) + plain[place:]


def international(text: bytes, compressed: bool = False) -> bytes:
    body = zlib.compress(text) if compressed else text
    return png_chunk(b"iTXt", b"XML:com.adobe.xmp\0" + bytes([compressed, 0]) + b"\0\0" + body)


def raw_profile(orientation: int) -> bytes:
    data = b"Exif\0\0" + exif(orientation)
    text = f"\nexif\n{len(data):8}\n{data.hex()}\n".encode()
    return png_chunk(b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(text))


def webp(*chunks: tuple[bytes, bytes], flags: int) -> bytes:
    """Converts Pillow's simple WebP format to the extended one."""
    body = saved(source_image(), "WEBP", lossless=True)[12:]
    part = lambda kind, data: kind + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)
    size = struct.pack("<I", 24 - 1)[:3] + struct.pack("<I", 16 - 1)[:3]
    body = part(b"VP8X", bytes([flags, 0, 0, 0]) + size) + body + b"".join(part(*each) for each in chunks)
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body


def images() -> dict[str, bytes]:
    files = {}
    for value in range(10):
        files[f"xmp_{value}.jpg"] = jpeg(XMP_NAME + attribute(str(value)))
    files |= {
        "xmp_element_6.jpg": jpeg(XMP_NAME + element("6")),
        "xmp_two_digits.jpg": jpeg(XMP_NAME + attribute("68")),
        "xmp_space_is_none.jpg": jpeg(XMP_NAME + b'<a tiff:Orientation = "6"/>'),
        "xmp_single_quote_is_none.jpg": jpeg(XMP_NAME + b"<a tiff:Orientation='6'/>"),
        "xmp_second_match.jpg": jpeg(XMP_NAME + b'<a tiff:Orientation="x"/><b tiff:Orientation="3"/>'),
        "xmp_last_packet.jpg": jpeg(XMP_NAME + attribute("6"), XMP_NAME + attribute("3")),
        "xmp_behind_frame.jpg": jpeg(after_frame=XMP_NAME + attribute("8")),
        "exif_behind_frame.jpg": jpeg(after_frame=b"Exif\0\0" + exif(6)),
        "exif_before_xmp.jpg": jpeg(b"Exif\0\0" + exif(3), XMP_NAME + attribute("6")),
        "xmp_then_exif.jpg": jpeg(XMP_NAME + attribute("6"), b"Exif\0\0" + exif(3)),
        "exif_1_before_xmp.jpg": jpeg(b"Exif\0\0" + exif(1), XMP_NAME + attribute("6")),
        "exif_9_before_xmp.jpg": jpeg(b"Exif\0\0" + exif(9), XMP_NAME + attribute("6")),
        "exif_without_tag.jpg": jpeg(b"Exif\0\0" + exif(None), XMP_NAME + attribute("6")),
        "xmp.png": png(international(attribute("6"))),
        "xmp_compressed.png": png(international(attribute("8"), compressed=True)),
        "xmp_at_end.png": png(international(attribute("6")), at_end=True),
        "xmp_text.png": png(png_chunk(b"tEXt", b"XML:com.adobe.xmp\0" + attribute("5"))),
        "xmp_compressed_text.png": png(png_chunk(b"zTXt", b"XML:com.adobe.xmp\0\0" + zlib.compress(attribute("7")))),
        "exif_at_end_before_xmp.png": png(international(attribute("6")), png_chunk(b"eXIf", exif(3)), at_end=True),
        "exif_without_tag.png": png(png_chunk(b"eXIf", exif(None)), international(attribute("6"))),
        "raw_profile.png": png(raw_profile(6)),
        "raw_profile_before_xmp.png": png(international(attribute("6")), raw_profile(3)),
        "exif_before_raw_profile.png": png(raw_profile(6), png_chunk(b"eXIf", exif(8))),
        "other_text.png": png(png_chunk(b"tEXt", b"Comment\0" + attribute("6"))),
        "xmp.webp": webp((b"XMP ", attribute("6")), flags=0x04),
        "exif_before_xmp.webp": webp((b"EXIF", exif(3)), (b"XMP ", attribute("6")), flags=0x0C),
        "exif_without_tag.webp": webp((b"EXIF", exif(None)), (b"XMP ", attribute("8")), flags=0x0C),
        "xmp_without_flag.webp": webp((b"XMP ", attribute("6")), flags=0),
        "exif_without_flag.webp": webp((b"EXIF", exif(6)), flags=0),
    }
    return files


def make_turn(path: pathlib.Path) -> int:
    """Returns the EXIF orientation that turns the stored pixels into Pillow's image."""
    stored = PIL.Image.open(path).convert("RGB")
    turned = PIL.ImageOps.exif_transpose(PIL.Image.open(path)).convert("RGB")
    methods = [None, PIL.Image.Transpose.FLIP_LEFT_RIGHT, PIL.Image.Transpose.ROTATE_180,
               PIL.Image.Transpose.FLIP_TOP_BOTTOM, PIL.Image.Transpose.TRANSPOSE, PIL.Image.Transpose.ROTATE_270,
               PIL.Image.Transpose.TRANSVERSE, PIL.Image.Transpose.ROTATE_90]
    for value, method in enumerate(methods, start=1):
        candidate = stored if method is None else stored.transpose(method)
        if candidate.size == turned.size and candidate.tobytes() == turned.tobytes():
            return value
    raise SystemExit(f"{path}: Pillow's image is no rotation or reflection of the stored one")


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, content in images().items():
        (FOLDER / name).write_bytes(content)
    cases = {name: make_turn(FOLDER / name) for name in sorted(images())}
    text = json.dumps({"pillow": PIL.__version__, "cases": cases}, indent=1)
    (FOLDER / "orientations.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
