#!/usr/bin/env python3
"""Writes the reference data of the mask tests: PNG masks of every kind, and run lengths of pycocotools.

    make_mask_goldens.py          (needs Pillow, numpy and pycocotools; see tests/image/data/masks/SOURCES.md)

tests/image/data/masks/          PNG files, and masks.json: "files", each with the requested value or null, and
                                 "rles", each with pycocotools' counts as a list and as a string; the masks are rows of
                                 0 and 1, or the CRC-32 of their bytes

This script draws the masks. Files whose stored values Pillow returns are verified against Pillow.
"""
import importlib.metadata
import io
import pathlib
import zlib
from functools import partial

import numpy as np
import PIL
import PIL.Image
from pycocotools import mask as coco

from goldens import exif, png_chunk, raw_png, saved, write_cases

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "tests/image/data/masks"
HEIGHT, WIDTH = 13, 19
mask_png = partial(raw_png, WIDTH, HEIGHT, level=-1)


def labels(most: int) -> np.ndarray:
    """Returns asymmetric blobs of the values 0 to `most`."""
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    source_image = np.zeros((HEIGHT, WIDTH), np.int64)
    source_image[np.hypot(y - 4, x - 5) < 3.6] = 1
    source_image[(y > 7) & (x > 11)] = most
    source_image[0, WIDTH - 1] = max(1, most // 2)
    source_image[HEIGHT - 1, 0:4] = max(1, most - 1)
    return source_image


def packed(samples: np.ndarray, depth: int) -> bytes:
    """Returns rows with their filter bytes; samples of fewer than eight bits start at the highest bit."""
    if depth == 16:
        return b"".join(b"\0" + row.astype(">u2").tobytes() for row in samples)
    rows = b""
    for row in samples:
        bits = "".join(f"{int(value):0{depth}b}" for value in row.reshape(-1))
        bits += "0" * (-len(bits) % 8)
        rows += b"\0" + bytes(int(bits[i : i + 8], 2) for i in range(0, len(bits), 8))
    return rows


def interlaced(samples: np.ndarray, depth: int) -> bytes:
    passes = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]
    parts = [samples[y::down, x::right] for y, x, down, right in passes]
    return b"".join(packed(part, depth) for part in parts if part.size)


def with_palette(indices: np.ndarray, colours: list[tuple[int, int, int]]) -> PIL.Image.Image:
    image = PIL.Image.fromarray(indices.astype(np.uint8), "P")
    image.putpalette([part for colour in colours for part in colour])
    return image


def colours(count: int) -> list[tuple[int, int, int]]:
    """Returns a palette in which index 1 is black and index 0 is not, so that a reader of colors loses index 1."""
    return [(9, 9, 9), (0, 0, 0)] + [(37 * i % 256, 91 * i % 256, 200 - i % 100) for i in range(2, count)]


def files() -> dict[str, tuple[bytes, np.ndarray]]:
    """Returns {name: (content, stored values)}; values of RGB files are [height, width, 3]."""
    one, two, four, eight, sixteen = labels(1), labels(3), labels(15), labels(255), labels(40000)
    void = np.where(eight == 1, 255, eight // 50)
    # Alpha that contradicts the mask, and values that differ from 0 only in the lower byte.
    alpha = np.where(eight > 0, 0, 255).astype(np.uint8)
    sixteen[2, 9] = 256
    rgb = np.stack([eight == 1, eight == 254, eight == 127], -1) * 200
    palette = b"".join(bytes(colour) for colour in colours(16))
    grey = PIL.Image.fromarray(eight.astype(np.uint8), "L")
    result = {
        "bilevel.png": (saved(PIL.Image.fromarray(one.astype(bool))), one),
        "grey_2_bit.png": (mask_png(2, 0, packed(two, 2)), two),
        "grey_4_bit.png": (mask_png(4, 0, packed(four, 4)), four),
        "grey.png": (saved(grey), eight),
        "grey_16_bit.png": (saved(PIL.Image.fromarray(sixteen.astype(np.uint16))), sixteen),
        "grey_alpha.png": (saved(PIL.Image.merge("LA", [grey, PIL.Image.fromarray(alpha)])), eight),
        "grey_transparent_value.png": (saved(grey, transparency=255), eight),
        "rgb.png": (saved(PIL.Image.fromarray(rgb.astype(np.uint8))), rgb),
        "rgba.png": (saved(PIL.Image.fromarray(np.dstack([rgb, alpha]).astype(np.uint8))), rgb),
        "rgb_16_bit.png": (mask_png(16, 2, packed(np.stack([sixteen * 0, sixteen, sixteen * 0], -1), 16)),
                           np.stack([sixteen * 0, sixteen, sixteen * 0], -1)),
        "palette_1.png": (saved(with_palette(one, colours(2)), bits=1), one),
        "palette_2.png": (saved(with_palette(two, colours(4)), bits=2), two),
        "palette_4.png": (saved(with_palette(four, colours(16)), bits=4), four),
        "palette_8.png": (saved(with_palette(void, colours(256))), void),
        "palette_transparent.png": (saved(with_palette(void, colours(256)), transparency=bytes(256)), void),
        "palette_interlaced.png": (mask_png(4, 3, interlaced(four, 4), png_chunk(b"PLTE", palette), interlace=1), four),
        "orientation_6.png": (saved(grey, exif=exif(6)), np.rot90(eight, -1)),
    }
    for name, (content, values) in result.items():
        image = PIL.Image.open(io.BytesIO(content))
        if image.mode in ("1", "L", "P", "I;16", "RGB") and "_bit" not in name and "orientation" not in name:
            assert np.array_equal(np.asarray(image).astype(np.int64), values), name
    return result


def rows(mask: np.ndarray) -> list[str]:
    return ["".join(str(int(pixel)) for pixel in row) for row in mask]


# A few gray values next to the highest: labels with a border, or noise. Such a file is rejected without a value.
REFUSED = {"grey.png", "grey_alpha.png", "grey_transparent_value.png", "orientation_6.png"}


def file_cases(name: str, values: np.ndarray) -> list[dict]:
    if values.ndim == 3:
        return [{"file": name, "value": None, "mask": rows(values.any(-1))}]
    expected = [*([] if name in REFUSED else [None]), *sorted({0, 1, int(values.max())})]
    return [{"file": name, "value": value, "mask": rows(values != 0 if value is None else values == value)}
            for value in expected]


def rle_masks() -> dict[str, np.ndarray]:
    random = np.random.default_rng(5)
    y, x = np.mgrid[0:200, 0:300]
    return {
        "empty": np.zeros((4, 6), bool),
        "full": np.ones((4, 6), bool),
        "pixel": np.ones((1, 1), bool),
        "row": np.array([[0, 1, 1, 0, 1]], bool),
        "column": np.array([[1], [1], [0], [1]], bool),
        "blobs": labels(3) > 0,
        "noise": random.random((17, 23)) < 0.5,
        "disc": np.hypot(y - 90, x - 170) < 80,
        "sparse": random.random((333, 257)) < 0.0005,
        "corner": np.hypot(y, x) < 4,
    }


def find_counts(text: str) -> list[int]:
    """Returns the run lengths of a mask, column by column; pycocotools has no function for them."""
    flat = coco.decode(text).T.reshape(-1)
    ends = np.flatnonzero(np.diff(flat)) + 1
    counts = np.diff(np.concatenate([[0], ends, [flat.size]])).tolist()
    return [0, *counts] if flat[0] else counts


def rle_cases() -> list[dict]:
    cases = []
    for name, mask in rle_masks().items():
        encoded = coco.encode(np.asfortranarray(mask.astype(np.uint8)))
        counts = find_counts(encoded)
        as_list = coco.frPyObjects({"size": encoded["size"], "counts": counts}, *encoded["size"])
        assert as_list["counts"] == encoded["counts"], name
        case = {"name": name, "size": encoded["size"], "counts": counts, "string": encoded["counts"].decode("ascii"),
                "crc32": f"{zlib.crc32(mask.astype(np.uint8).tobytes()):08x}"}
        cases.append(case | ({"mask": rows(mask)} if mask.size < 500 else {}))
    return cases


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    draw_array = files()
    for file, (content, _) in draw_array.items():
        (FOLDER / file).write_bytes(content)
    (FOLDER / "lossy.jpg").write_bytes(saved(PIL.Image.fromarray(labels(255).astype(np.uint8)), "JPEG"))
    alpha = PIL.Image.fromarray((labels(255) > 0).astype(np.uint8) * 255)
    (FOLDER / "shape_in_alpha.png").write_bytes(saved(PIL.Image.merge("LA", [alpha.point(lambda _: 255), alpha])))
    (FOLDER / "lossless.webp").write_bytes(saved(PIL.Image.fromarray(labels(255).astype(np.uint8)), "WEBP", lossless=True))
    write_cases(FOLDER / "masks.json", {
        "files": [case for name, (_, values) in sorted(draw_array.items()) for case in file_cases(name, values)],
        "rles": rle_cases()})
    (FOLDER / "SOURCES.md").write_text(
        "# Sources\n\nMasks as PNG files of every kind, and `masks.json`: of each the mask, and run lengths of pycocotools.\n\n"
        f"Made by `scripts/make_mask_goldens.py` with Pillow {PIL.__version__}, numpy {np.__version__} and pycocotools "
        f"{importlib.metadata.version('pycocotools')}; drawn by that script.\n")
