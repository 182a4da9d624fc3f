#!/usr/bin/env python3
"""Writes the reference data of the image tests: small synthetic images, and the results of Pillow, torchvision and
transformers for them.

    make_image_goldens.py          (needs torch, torchvision, transformers, Pillow and numpy; see SOURCES.md)

tests/image/data/                    images, decode.json, decoded.bin; resize.json, resize_sources.bin
tests/models/data/idefics3_images/   images, cases.json, pixels.bin

Images come from a fixed seed. Small results are stored as bytes, the others as the CRC-32 of their bytes.
"""
import json
import pathlib
import struct
import zlib

import numpy as np
import PIL.Image
import PIL.ImageOps
import torch
import torchvision
import transformers
from torchvision.transforms.v2 import functional as tv
from transformers.image_transforms import convert_to_rgb

from goldens import ORIENTATION_TAG, exif, raw_png, saved, write_cases

ROOT = pathlib.Path(__file__).resolve().parent.parent
DECODE = ROOT / "tests/image/data"
IDEFICS3 = ROOT / "tests/models/data/idefics3_images"


def draw(height: int, width: int, seed: int) -> np.ndarray:
    """Draws gradients, a disc and hard-edged stripes, with noise on the right half: smooth, sharp and noisy parts in one image."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    source_image = np.stack([255 * x / width, 255 * y / height, 127 + 127 * np.sin((x + y) / 5)], axis=-1)
    source_image[np.hypot(y - height * 0.4, x - width * 0.35) < min(height, width) * 0.25] = (230, 40, 60)
    source_image[(y.astype(int) % 9 < 2) & (x < width * 0.2)] = (0, 255, 255)
    noise = np.random.default_rng(seed).integers(-60, 60, source_image.shape)
    source_image += noise * (x > width / 2)[..., None]
    return source_image.clip(0, 255).astype(np.uint8)


def crc(array: np.ndarray) -> str:
    return f"{zlib.crc32(np.ascontiguousarray(array).tobytes()):08x}"


def big_endian_exif(orientation: int) -> bytes:
    """Returns big-endian EXIF data, which cameras write; Pillow writes only little-endian."""
    entry = struct.pack(">HHIHH", ORIENTATION_TAG, 3, 1, orientation, 0)
    return b"Exif\0\0MM\0*" + struct.pack(">IH", 8, 1) + entry + struct.pack(">I", 0)


def make_rows(samples: np.ndarray) -> bytes:
    """Returns unfiltered rows of [height, width, channels]."""
    flat = samples.reshape(samples.shape[0], -1)
    return b"".join(b"\0" + row.tobytes() for row in flat)


def interlaced_rows(samples: np.ndarray) -> bytes:
    """Returns the rows of Adam7's seven passes."""
    passes = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]
    parts = [samples[y::down, x::right] for y, x, down, right in passes]
    return b"".join(make_rows(part) for part in parts if part.size)


def decode_images() -> dict[str, bytes]:
    small = draw(17, 23, 1)
    rgb = PIL.Image.fromarray(small)
    alpha = np.linspace(0, 255, 17 * 23).reshape(17, 23).astype(np.uint8)
    rgba = PIL.Image.fromarray(np.dstack([small, alpha]))
    grey = rgb.convert("L")
    palette = rgb.quantize(13)
    sixteen = np.random.default_rng(2).integers(0, 65536, (17, 23, 4), dtype=np.uint16)
    nibbles = np.random.default_rng(3).integers(0, 256, (17, 12), dtype=np.uint8)
    images = {
        "rgb.jpg": saved(rgb, "JPEG", quality=90),
        "rgb_444.jpg": saved(rgb, "JPEG", quality=75, subsampling=0),
        "progressive.jpg": saved(rgb, "JPEG", quality=85, progressive=True),
        "restarts.jpg": saved(rgb, "JPEG", quality=85, restart_marker_blocks=1),
        "grey.jpg": saved(grey, "JPEG"),
        "cmyk.jpg": saved(PIL.Image.fromarray(sixteen.astype(np.uint8), "CMYK"), "JPEG", quality=95),
        "orientation_6_big_endian.jpg": saved(rgb, "JPEG", exif=big_endian_exif(6)),
        "orientation_9_is_none.jpg": saved(rgb, "JPEG", exif=big_endian_exif(9)),
        "rgb.png": saved(rgb, "PNG"),
        "rgba.png": saved(rgba, "PNG"),
        "grey.png": saved(grey, "PNG"),
        "grey_alpha.png": saved(rgba.convert("LA"), "PNG"),
        "bilevel.png": saved(rgb.convert("1"), "PNG"),
        "palette_4.png": saved(palette, "PNG"),
        "palette_8.png": saved(rgb.quantize(40), "PNG"),
        "palette_alpha.png": saved(palette, "PNG", transparency=bytes(range(0, 250, 20))[:13]),
        "palette_transparent_entry.png": saved(palette, "PNG", transparency=3),
        "rgb_transparent_colour.png": saved(rgb, "PNG", transparency=tuple(int(v) for v in small[16, 0])),
        "grey_4_bit.png": raw_png(23, 17, 4, 0, make_rows(nibbles)),
        "rgb_16_bit.png": raw_png(23, 17, 16, 2, make_rows(sixteen[..., :3].astype(">u2"))),
        "rgba_16_bit.png": raw_png(23, 17, 16, 6, make_rows(sixteen.astype(">u2"))),
        "interlaced.png": raw_png(23, 17, 8, 2, interlaced_rows(small), interlace=1),
        "orientation_8.png": saved(rgb, "PNG", exif=exif(8)),
        "rgb.webp": saved(rgb, "WEBP", quality=80),
        "lossless.webp": saved(rgb, "WEBP", lossless=True),
        "alpha.webp": saved(rgba, "WEBP", quality=80),
        "lossless_alpha.webp": saved(rgba, "WEBP", lossless=True, exact=True),
        "orientation_6.webp": saved(rgb, "WEBP", quality=80, exif=exif(6)),
    }
    for orientation in range(1, 9):
        images[f"orientation_{orientation}.jpg"] = saved(rgb, "JPEG", exif=exif(orientation))
    return images


def reference_rgb(path: pathlib.Path) -> np.ndarray:
    """Returns the image as the input of transformers' torchvision backend, [height, width, 3]."""
    return convert_to_rgb(PIL.ImageOps.exif_transpose(PIL.Image.open(path)), return_numpy=True)


def make_decode() -> None:
    cases, blob = [], b""
    for name, content in sorted(decode_images().items()):
        (DECODE / name).write_bytes(content)
        planes = reference_rgb(DECODE / name).transpose(2, 0, 1)
        cases.append({"file": name, "height": planes.shape[1], "width": planes.shape[2], "offset": len(blob)})
        blob += planes.tobytes()
    # Pillow clips 16-bit gray at 255; vlmtrain keeps the upper byte, so this file has no entry of Pillow's.
    grey = np.arange(0, 65536, 65536 // 64, dtype=np.uint16).reshape(8, 8)
    (DECODE / "grey_16_bit.png").write_bytes(raw_png(8, 8, 16, 0, make_rows(grey.astype(">u2"))))
    (DECODE / "decoded.bin").write_bytes(blob)
    write_cases(DECODE / "decode.json", cases)


def make_resize() -> None:
    """Writes the resize cases. The sources are stored raw, so that only resizing is tested."""
    sources = {"wide": draw(45, 83, 4), "tall": draw(97, 31, 5), "thin": draw(3, 64, 6), "few": draw(2, 2, 7)}
    blob, files, cases = b"", {}, []
    for name, source_image in sources.items():
        planes = np.ascontiguousarray(source_image.transpose(2, 0, 1))
        files[name] = {"height": planes.shape[1], "width": planes.shape[2], "offset": len(blob)}
        blob += planes.tobytes()
    modes = {"bilinear": tv.InterpolationMode.BILINEAR, "bicubic": tv.InterpolationMode.BICUBIC,
             "lanczos": tv.InterpolationMode.LANCZOS}
    sizes = [(45, 83), (22, 40), (90, 166), (64, 64), (45, 200), (7, 83), (1, 2), (128, 5), (33, 17), (300, 301)]
    for name, source_image in sources.items():
        for filter_name, mode in modes.items():
            for height, width in sizes:
                planes = torch.from_numpy(source_image).permute(2, 0, 1)
                packed = tv.resize(planes.contiguous(), [height, width], interpolation=mode, antialias=True)
                last = tv.resize(planes, [height, width], interpolation=mode, antialias=True)  # channels_last
                assert torch.equal(packed, last), (name, filter_name, height, width)
                cases.append({"source": name, "filter": filter_name, "height": height, "width": width,
                              "crc32": crc(packed.numpy())})
    (DECODE / "resize_sources.bin").write_bytes(blob)
    write_cases(DECODE / "resize.json", {"sources": files, "cases": cases})


def idefics3_images() -> dict[str, bytes]:
    return {
        "wide.png": saved(PIL.Image.fromarray(draw(61, 150, 11)), "PNG"),
        "tall.jpg": saved(PIL.Image.fromarray(draw(211, 83, 12)), "JPEG", quality=85),
        "square.webp": saved(PIL.Image.fromarray(draw(64, 64, 13)), "WEBP", quality=80),
        "tiny.png": saved(PIL.Image.fromarray(draw(5, 3, 14)), "PNG"),
        "strip.png": saved(PIL.Image.fromarray(draw(2, 180, 15)), "PNG"),
        "turned.jpg": saved(PIL.Image.fromarray(draw(70, 101, 16)), "JPEG", quality=85, exif=exif(6)),
        "clear.png": saved(PIL.Image.fromarray(np.dstack([draw(37, 53, 17), draw(37, 53, 18)[..., 0]])), "PNG"),
        "large.jpg": saved(PIL.Image.fromarray(draw(300, 401, 19)), "JPEG", quality=60),
    }


def config(kind: str, longest: int, tile: int, **others) -> dict:
    return {"image_processor_type": kind, "size": {"longest_edge": longest}, "max_image_size": {"longest_edge": tile},
            "do_image_splitting": True, "resample": 1, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
            "rescale_factor": 1 / 255, "do_resize": True, "do_rescale": True, "do_normalize": True,
            "do_convert_rgb": True, "do_pad": True, **others}


def idefics3_configs() -> dict[str, dict]:
    one, two = "Idefics3ImageProcessor", "SmolVLMImageProcessor"
    clip = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}
    return {
        "tiny": config(one, 128, 32),
        "tiny_whole": config(two, 128, 32, do_image_splitting=False),
        "odd_edges": config(two, 150, 36, **clip),
        "bicubic": config(one, 96, 48, resample=3),
        "bilinear": config(two, 96, 48, resample=2, rescale_factor=0.004),
        "one_tile": config(one, 64, 64),
        "beyond_4096": config(one, 5000, 1024),
        "smolvlm_256m": config(one, 2048, 512),
        "smolvlm_2b": config(one, 1536, 384),
        "idefics3_8b": config(one, 1456, 364),
        "smolvlm2": config(two, 2048, 512, do_image_splitting=False),
    }


def make_idefics3() -> None:
    images, configs, cases, blob = idefics3_images(), idefics3_configs(), [], b""
    for name, content in images.items():
        (IDEFICS3 / name).write_bytes(content)
    for config_name, settings in configs.items():
        processor = getattr(transformers, settings["image_processor_type"])(
            **{key: value for key, value in settings.items() if key != "image_processor_type"})
        assert processor.backend == "torchvision"
        for source_image in sorted(images):
            if config_name == "beyond_4096" and source_image != "strip.png":
                continue  # 50 MB of pixels each
            image = PIL.ImageOps.exif_transpose(PIL.Image.open(IDEFICS3 / source_image))
            result = processor(image, return_tensors="pt", return_row_col_info=True)
            pixels = result["pixel_values"][0].numpy()
            assert pixels.dtype == np.float32
            case = {"config": config_name, "picture": source_image, "rows": result["rows"][0][0],
                    "columns": result["cols"][0][0], "tiles": pixels.shape[0], "crc32": crc(pixels)}
            # The smallest store their floats, so that a failure can be analyzed.
            if config_name in ("tiny", "tiny_whole") and source_image in ("wide.png", "tiny.png"):
                case["offset"] = len(blob)
                blob += pixels.tobytes()
            cases.append(case)
    (IDEFICS3 / "pixels.bin").write_bytes(blob)
    write_cases(IDEFICS3 / "cases.json", {"configs": configs, "cases": cases})


def sources(what: str) -> str:
    return (f"# Sources\n\n{what}\n\nMade by `scripts/make_image_goldens.py` with torch {torch.__version__.split('+')[0]}, "
            f"torchvision {torchvision.__version__.split('+')[0]}, transformers {transformers.__version__},\n"
            f"Pillow {PIL.__version__}. The images are drawn by that script and contain no third-party work.\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for folder in (DECODE, IDEFICS3):
        folder.mkdir(parents=True, exist_ok=True)
    make_decode()
    make_resize()
    make_idefics3()
    (DECODE / "SOURCES.md").write_text(sources(
        "`decode.json` with `decoded.bin`: images of every kind and the RGB planes that Pillow and transformers read from them.\n"
        "`resize.json` with `resize_sources.bin`: raw images, and the CRC-32 of the results of torchvision's antialiased resize."))
    (IDEFICS3 / "SOURCES.md").write_text(sources(
        "`cases.json` with `pixels.bin`: for each image and configuration, the grid and the CRC-32 of the float32 `pixel_values`\n"
        "of transformers' image processor on torchvision; for the smallest, the floats themselves."))
