#!/usr/bin/env python3
"""Writes the reference data of the tests of TIFF, HEIC and AVIF: small synthetic images, and what Pillow reads from them.

    make_tiff_heif_goldens.py          (needs Pillow, pillow-heif and numpy; see SOURCES.md)

tests/image/data/tiff_heif/   images, cases.json, decoded.bin

TIFF files of kinds that Pillow does not write are written by this script. Images come from a fixed seed.
"""
import pathlib
import struct

import numpy as np
import PIL.Image
import PIL.ImageOps
import pillow_heif

from goldens import exif, saved, write_cases

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "tests/image/data/tiff_heif"
WIDTH, LENGTH, BITS, COMPRESSION, PHOTOMETRIC, STRIP_OFFSETS, ORIENTATION, SAMPLES, ROWS_PER_STRIP = 256, 257, 258, 259, 262, 273, 274, 277, 278
STRIP_BYTES, PLANAR, COLOR_MAP, TILE_WIDTH, TILE_LENGTH, TILE_OFFSETS, TILE_BYTES, EXTRA_SAMPLES = 279, 284, 320, 322, 323, 324, 325, 338
SAMPLE_FORMAT, XMP = 339, 700
WHITE_IS_ZERO, BLACK_IS_ZERO, RGB, PALETTE, SEPARATED = 0, 1, 2, 3, 5


def draw(height: int, width: int) -> np.ndarray:
    """Draws gradients, a disc and stripes."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    image = np.stack([255 * x / width, 255 * y / height, 127 + 127 * np.sin((x + y) / 5)], axis=-1)
    image[np.hypot(y - height * 0.4, x - width * 0.35) < min(height, width) * 0.25] = (230, 40, 60)
    image[(y.astype(int) % 9 < 2) & (x < width * 0.2)] = (0, 255, 255)
    return image.clip(0, 255).astype(np.uint8)


def make_tiff(tags: dict[int, int | tuple | bytes], blocks: list[bytes], order: str = "<", big: bool = False) -> bytes:
    """Writes one directory after the blocks, strips or tiles. Values are SHORTs or, above 65535, LONGs; bytes are BYTEs."""
    header = 16 if big else 8
    offsets = [header + sum(len(block) for block in blocks[:i]) for i in range(len(blocks))]
    tiled = TILE_WIDTH in tags
    tags = {**tags, TILE_OFFSETS if tiled else STRIP_OFFSETS: tuple(offsets),
            TILE_BYTES if tiled else STRIP_BYTES: tuple(len(block) for block in blocks)}
    data = b"".join(blocks)
    data += b"\0" * (len(data) % 2)
    word, count_format, field = ("Q", "Q", 8) if big else ("I", "H", 4)
    extra_offset = header + len(data)
    entries, extra = [], b""
    for tag, value in sorted(tags.items()):
        if isinstance(value, bytes):
            kind, values = 1, tuple(value)
        else:
            values = value if isinstance(value, tuple) else (value,)
            kind = 4 if max(values) > 65535 else 3
        packed = struct.pack(order + {1: "B", 3: "H", 4: "I"}[kind] * len(values), *values)
        if len(packed) > field:
            packed_field = struct.pack(order + word, extra_offset + len(extra))
            extra += packed + b"\0" * (len(packed) % 2)
        else:
            packed_field = packed.ljust(field, b"\0")
        entries.append(struct.pack(order + "HH" + word, tag, kind, len(values)) + packed_field)
    directory = struct.pack(order + count_format, len(entries)) + b"".join(entries) + struct.pack(order + word, 0)
    mark = b"II" if order == "<" else b"MM"
    start = struct.pack(order + "HHHQ", 43, 8, 0, extra_offset + len(extra)) if big else struct.pack(order + "HI", 42, extra_offset + len(extra))
    return mark + start + data + extra + directory


def make_tags(samples: np.ndarray, photometric: int, **extra_tags) -> dict[int, int | tuple | bytes]:
    """Returns the tags of [height, width, samples], uint8 or uint16."""
    height, width, num_samples = samples.shape
    tags = {WIDTH: width, LENGTH: height, BITS: (samples.itemsize * 8,) * num_samples, COMPRESSION: 1, PHOTOMETRIC: photometric,
            SAMPLES: num_samples, ROWS_PER_STRIP: height}
    tags.update({globals()[name.upper()]: value for name, value in extra_tags.items()})
    return tags


def in_order(samples: np.ndarray, order: str) -> bytes:
    return samples.astype(samples.dtype.newbyteorder(order)).tobytes()


def raw_tiff(samples: np.ndarray, photometric: int, order: str = "<", big: bool = False, **extra_tags) -> bytes:
    return make_tiff(make_tags(samples, photometric, **extra_tags), [in_order(samples, order)], order, big)


def planar_tiff(samples: np.ndarray, photometric: int, **extra_tags) -> bytes:
    blocks = [in_order(samples[..., i], "<") for i in range(samples.shape[2])]
    return make_tiff(make_tags(samples, photometric, planar=2, **extra_tags), blocks)


def tiled_tiff(samples: np.ndarray, photometric: int, tile: int = 16, planar: bool = False) -> bytes:
    height, width, num_samples = samples.shape
    padded = np.zeros((-(-height // tile) * tile, -(-width // tile) * tile, num_samples), samples.dtype)
    padded[:height, :width] = samples
    planes = [padded[..., i:i + 1] for i in range(num_samples)] if planar else [padded]
    blocks = [in_order(plane[y:y + tile, x:x + tile], "<") for plane in planes
              for y in range(0, padded.shape[0], tile) for x in range(0, padded.shape[1], tile)]
    tags = make_tags(samples, photometric, tile_width=tile, tile_length=tile, planar=2 if planar else 1)
    del tags[ROWS_PER_STRIP]
    return make_tiff(tags, blocks)


def packed_tiff(values: np.ndarray, bits: int, photometric: int, **extra_tags) -> bytes:
    """Writes one sample per pixel, with fewer than 8 bits."""
    per_byte = 8 // bits
    height, width = values.shape
    padded = np.zeros((height, -(-width // per_byte) * per_byte), np.uint8)
    padded[:, :width] = values
    shifts = np.arange(per_byte - 1, -1, -1) * bits
    packed = (padded.reshape(height, -1, per_byte) << shifts).sum(-1).astype(np.uint8)
    tags = {**make_tags(values[..., None], photometric, **extra_tags), BITS: bits}
    return make_tiff(tags, [packed.tobytes()])


def tiff_images() -> dict[str, bytes]:
    small = draw(11, 17)
    rgb = PIL.Image.fromarray(small)
    gray = np.asarray(rgb.convert("L"))[..., None]
    alpha = np.linspace(0, 255, 11 * 17).reshape(11, 17, 1).astype(np.uint8)
    wide = np.random.default_rng(2).integers(0, 65536, (11, 17, 4), dtype=np.uint16)
    color_map = tuple(int(v) for v in np.random.default_rng(3).integers(0, 65536, 3 * 16))
    levels = np.random.default_rng(4).integers(0, 16, (11, 17), dtype=np.uint8)
    premultiplied = np.dstack([small * (alpha / 255.0), alpha]).astype(np.uint8)
    images = {
        "rgb.tif": saved(rgb, "TIFF"),
        "gray.tif": saved(PIL.Image.fromarray(gray[..., 0]), "TIFF"),
        "bilevel.tif": saved(rgb.convert("1"), "TIFF"),
        "group4.tif": saved(rgb.convert("1"), "TIFF", compression="group4"),
        "palette.tif": saved(rgb.quantize(40), "TIFF"),
        "cmyk.tif": saved(PIL.Image.fromarray(wide.astype(np.uint8), "CMYK"), "TIFF"),
        "inverted_gray.tif": raw_tiff(gray, WHITE_IS_ZERO),
        "inverted_bilevel.tif": packed_tiff(levels // 8, 1, WHITE_IS_ZERO),
        "gray_2_bit.tif": packed_tiff(levels // 4, 2, BLACK_IS_ZERO),
        "gray_4_bit.tif": packed_tiff(levels, 4, BLACK_IS_ZERO),
        "inverted_gray_4_bit.tif": packed_tiff(levels, 4, WHITE_IS_ZERO),
        "palette_4_bit.tif": packed_tiff(levels, 4, PALETTE, color_map=color_map),
        "rgba.tif": raw_tiff(np.dstack([small, alpha]), RGB, extra_samples=2),
        "rgba_premultiplied.tif": raw_tiff(premultiplied, RGB, extra_samples=1),
        "rgb_unspecified_sample.tif": raw_tiff(np.dstack([small, alpha]), RGB, extra_samples=0),
        "rgb_three_bands_more.tif": raw_tiff(np.dstack([small, small]), RGB, extra_samples=(0, 0, 0)),
        "gray_alpha.tif": raw_tiff(np.dstack([gray, alpha]), BLACK_IS_ZERO, extra_samples=2),
        "rgb_16_bit.tif": raw_tiff(wide[..., :3], RGB),
        "rgb_16_bit_big_endian.tif": raw_tiff(wide[..., :3], RGB, order=">"),
        "rgba_16_bit.tif": raw_tiff(wide, RGB, extra_samples=2),
        "cmyk_16_bit.tif": raw_tiff(wide, SEPARATED),
        "planar.tif": planar_tiff(small, RGB),
        "planar_rgba.tif": planar_tiff(np.dstack([small, alpha]), RGB, extra_samples=2),
        "tiled.tif": tiled_tiff(small, RGB),
        "tiled_planar.tif": tiled_tiff(small, RGB, planar=True),
        "tiled_gray.tif": tiled_tiff(gray, BLACK_IS_ZERO),
        "big.tif": raw_tiff(small, RGB, big=True),
        "xmp_6.tif": raw_tiff(small, RGB, xmp=b'<x tiff:Orientation="6"/>'),
        "orientation_3_xmp_6.tif": raw_tiff(small, RGB, orientation=3, xmp=b'<x tiff:Orientation="6"/>'),
        "two_pages.tif": saved(rgb, "TIFF", save_all=True, append_images=[rgb.rotate(180).convert("L")]),
    }
    for name, compression in (("lzw", "tiff_lzw"), ("deflate", "tiff_adobe_deflate"), ("packbits", "packbits"), ("lzma", "lzma"),
                              ("zstd", "zstd"), ("jpeg", "jpeg")):
        images[f"{name}.tif"] = saved(rgb, "TIFF", compression=compression)
    images["gray_jpeg.tif"] = saved(rgb.convert("L"), "TIFF", compression="jpeg")
    images["predictor.tif"] = saved(rgb, "TIFF", compression="tiff_lzw", tiffinfo={317: 2})
    for orientation in range(1, 9):
        images[f"orientation_{orientation}.tif"] = raw_tiff(small, RGB, orientation=orientation)
    return images


def heif_images() -> dict[str, bytes]:
    image = draw(20, 28)
    rgb = PIL.Image.fromarray(image)
    alpha = np.linspace(0, 255, 20 * 28).reshape(20, 28).astype(np.uint8)
    rgba = PIL.Image.fromarray(np.dstack([image, alpha]))
    images = {
        "rgb.avif": saved(rgb, "AVIF", quality=90, subsampling="4:4:4"),
        "subsampled.avif": saved(rgb, "AVIF", quality=90),
        "odd_size.avif": saved(rgb.crop((0, 0, 27, 19)), "AVIF", quality=90, subsampling="4:4:4"),
        "gray.avif": saved(rgb.convert("L"), "AVIF", quality=90),
        "rgba.avif": saved(rgba, "AVIF", quality=90, subsampling="4:4:4"),
        "rgb.heic": saved(rgb, "HEIF", quality=90, chroma=444),
        "subsampled.heic": saved(rgb, "HEIF", quality=90),
        "odd_size.heic": saved(rgb.crop((0, 0, 27, 19)), "HEIF", quality=90, chroma=444),
        "gray.heic": saved(rgb.convert("L"), "HEIF", quality=90),
        "rgba.heic": saved(rgba, "HEIF", quality=90, chroma=444),
    }
    for orientation in (2, 3, 6, 7):
        images[f"orientation_{orientation}.avif"] = saved(rgb, "AVIF", quality=90, subsampling="4:4:4", exif=exif(orientation))
        images[f"orientation_{orientation}.heic"] = saved(rgb, "HEIF", quality=90, chroma=444, exif=exif(orientation))
    return images


def reference_rgb(path: pathlib.Path) -> np.ndarray:
    """Returns what transformers' convert_to_rgb() returns: transparency is composited on white. [height, width, 3]"""
    image = PIL.ImageOps.exif_transpose(PIL.Image.open(path))
    if image.mode == "La":  # Pillow converts it only to LA
        image = image.convert("LA")
    if image.mode != "RGB":
        rgba = image.convert("RGBA")
        image = PIL.Image.alpha_composite(PIL.Image.new("RGBA", rgba.size, (255, 255, 255)), rgba).convert("RGB")
    return np.asarray(image)


def main() -> None:
    pillow_heif.register_heif_opener()
    FOLDER.mkdir(parents=True, exist_ok=True)
    cases, blob = [], b""
    for name, content in sorted({**tiff_images(), **heif_images()}.items()):
        (FOLDER / name).write_bytes(content)
        planes = reference_rgb(FOLDER / name).transpose(2, 0, 1)
        reference = planes.tobytes()
        if blob.find(reference) < 0:
            blob += reference
        cases.append({"file": name, "height": planes.shape[1], "width": planes.shape[2], "offset": blob.find(reference)})
    # Pillow clips 16-bit gray at 255; vlmtrain keeps the upper byte. Pillow also reads these as numbers, not as images.
    gray = np.arange(0, 65536, 65536 // 64, dtype=np.uint16).reshape(8, 8, 1)
    (FOLDER / "gray_16_bit.tif").write_bytes(raw_tiff(gray, BLACK_IS_ZERO))
    # Pillow does not read a BigTIFF in big-endian order.
    (FOLDER / "big_big_endian.tif").write_bytes(raw_tiff(draw(11, 17), RGB, order=">", big=True))
    float_values = np.linspace(0, 1, 64, dtype=np.float32).view(np.uint32).reshape(8, 8, 1)
    (FOLDER / "float.tif").write_bytes(raw_tiff(float_values, BLACK_IS_ZERO, sample_format=3))
    (FOLDER / "ten_bands.tif").write_bytes(raw_tiff(np.zeros((8, 8, 10), np.uint8), BLACK_IS_ZERO, extra_samples=(0,) * 9))
    (FOLDER / "decoded.bin").write_bytes(blob)
    write_cases(FOLDER / "cases.json", cases)
    (FOLDER / "SOURCES.md").write_text(
        "# Sources\n\n`cases.json` with `decoded.bin`: TIFF, HEIC and AVIF files and the RGB planes that Pillow reads from them. The other files\n"
        "are of kinds that Pillow reads differently or not at all.\n\n"
        f"Made by `scripts/make_tiff_heif_goldens.py` with Pillow {PIL.__version__} and pillow-heif {pillow_heif.__version__} (libheif "
        f"{pillow_heif.libheif_version()}). The images are\ndrawn by that script and contain no third-party work. Made again, the lossy files may differ with the encoders' versions.\n")


if __name__ == "__main__":
    main()
