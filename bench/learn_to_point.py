#!/usr/bin/env python3
"""Trains a small random model to point at a shape, with and without the rewrite of coordinates.

    bench/learn_to_point.py [--vlmtrain build/release/vlmtrain] [--steps 3000] [--out FOLDER]

The images have random sizes, so that the processor resizes each by another factor. The records state
the box of the shape in pixels of the file (ms-swift's `objects`). Both runs differ only in
data.boxes.out: `model` writes pixels of the resized image, `unchanged` those of the file. The script
prints the IoU on held-out images and the seconds of both runs. It needs no package but the standard
library.
"""

import argparse
import json
import random
import struct
import subprocess
import time
import zlib
from pathlib import Path

TRAINING_IMAGES, HELD_OUT_IMAGES = 6000, 100


def encode_png(width: int, height: int, rows: list[bytes]) -> bytes:
    """Returns an RGB image as PNG. `rows` have 3 * width bytes each."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows), 1)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def draw_image(rng: random.Random) -> tuple[bytes, list[int]]:
    """Returns an image with a rectangle or an ellipse, and its box in pixels."""
    width, height = rng.randint(100, 500), rng.randint(100, 500)
    box_width, box_height = rng.randint(width // 5, width * 3 // 4), rng.randint(height // 5, height * 3 // 4)
    left, top = rng.randint(0, width - box_width), rng.randint(0, height - box_height)
    background = bytes(rng.randint(0, 90) for _ in range(3))
    color = bytes(rng.randint(150, 255) for _ in range(3))
    is_ellipse = rng.random() < 0.5
    rows = []
    for y in range(height):
        row = background * width
        if top <= y < top + box_height:
            half = box_width / 2
            if is_ellipse:
                offset = (y + 0.5 - top - box_height / 2) / (box_height / 2)
                half *= max(0.0, 1 - offset * offset) ** 0.5
            begin, end = round(left + box_width / 2 - half), round(left + box_width / 2 + half)
            row = background * begin + color * (end - begin) + background * (width - end)
        rows.append(row)
    return encode_png(width, height, rows), [left, top, left + box_width, top + box_height]


def write_data(folder: Path, name: str, count: int, rng: random.Random) -> Path:
    records = []
    for index in range(count):
        png, box = draw_image(rng)
        file = folder / f"{name}-{index}.png"
        file.write_bytes(png)
        records.append({"id": f"{name}-{index}", "image": file.name, "objects": {"bbox": [box]},
                        "messages": [{"role": "user", "content": "<image>Where?"},
                                     {"role": "assistant", "content": "<bbox>"}]})
    path = folder / f"{name}.json"
    path.write_text(json.dumps(records))
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vlmtrain", type=Path, default=Path("build/release/vlmtrain"))
    parser.add_argument("--preset", default="qwen2.5-vl-tiny")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--modes", nargs="+", default=["model", "unchanged"], help="values of data.boxes.out")
    parser.add_argument("--out", type=Path, default=Path("learn_to_point"))
    arguments = parser.parse_args()

    arguments.out.mkdir(parents=True, exist_ok=True)
    model = arguments.out / "model"
    if not model.exists():
        subprocess.run([arguments.vlmtrain, "init", "--preset", arguments.preset, "--out", model], check=True)
    rng = random.Random(44)
    if not (arguments.out / "held_out.json").exists():
        write_data(arguments.out, "train", TRAINING_IMAGES, rng)
        write_data(arguments.out, "held_out", HELD_OUT_IMAGES, rng)
    for mode in arguments.modes:
        run = arguments.out / f"run-{mode}"
        config = arguments.out / f"{mode}.yaml"
        config.write_text(json.dumps({
            "model": {"path": str(model)},
            "data": {"train": str(arguments.out / "train.json"), "eval": str(arguments.out / "held_out.json"),
                     "boxes": {"out": mode}},
            "training": {"global_batch_size": arguments.batch_size, "max_steps": arguments.steps,
                         "learning_rate": arguments.learning_rate, "precision": "fp32",
                         "eval_steps": arguments.steps},
            "output": {"dir": str(run), "save_steps": arguments.steps}}))
        start = time.monotonic()
        subprocess.run([arguments.vlmtrain, "--config", config], check=True)
        seconds = time.monotonic() - start
        result = subprocess.run(
            [arguments.vlmtrain, "eval", "--config", config, "--checkpoint", run, "--json"], check=True,
            capture_output=True, text=True)
        scores = json.loads(result.stdout)
        print(json.dumps({"data.boxes.out": mode, "steps": arguments.steps, "seconds": round(seconds),
                          "loss": scores["loss"], "metrics": scores["metrics"]}))


if __name__ == "__main__":
    main()
