"""What the checks train on: tiny checkpoints of `vlmtrain init`, drawn pictures, conversations. The same bytes every time."""

import json
import math
import random
import shutil
import struct
import zlib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
WORDS = ("the a red green blue yellow circle square triangle star is in left right upper lower corner of picture what colour "
         "where how many shapes are there one two three").split()


def write_png(path, width, height, pixels):
    """`pixels`: bytes, three a pixel, row by row."""
    rows = b"".join(b"\0" + pixels[y * width * 3:(y + 1) * width * 3] for y in range(height))

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 1)) + chunk(b"IEND", b""))


def write_noise(path, width, height, seed):
    """Pictures of noise are as large as pictures get."""
    write_png(path, width, height, random.Random(seed).randbytes(width * height * 3))


def write_waves(path, width, height, seed):
    """Smooth colours, so that resizing and averaging leave something to see."""
    pixels = bytearray()
    for y in range(height):
        for x in range(width):
            for channel in range(3):
                phase = (seed + 1) * (channel + 1) * 0.7 + x * (0.02 + 0.01 * channel) + y * (0.05 - 0.01 * channel)
                pixels.append(int(127.5 + 127 * math.sin(phase)))
    write_png(path, width, height, bytes(pixels))


def text(seed, count):
    return " ".join(random.Random(seed).choices(WORDS, k=count))


SMALL_DATA = [[0], [1], [], [2], [0, 1], [1], [2], [0]]
MIXED_DATA = [[0], [], [], [2], [0, 1], [], [2], []]


def write_small_data(folder, pictures=None):
    """Eight samples that differ in length, pictures and sizes. `pictures`: of each; else one has none, one has two."""
    folder.mkdir(parents=True, exist_ok=True)
    sizes = [(224, 224), (300, 180), (150, 260)]
    for i, (width, height) in enumerate(sizes):
        write_waves(folder / f"{i}.png", width, height, i)
    records = []
    for i, used in enumerate(pictures or SMALL_DATA):
        records.append({"id": f"sample-{i}", "image": [f"{number}.png" for number in used],
                        "conversations": [{"from": "human", "value": "<image>\n" * len(used) + text(i, 4 + i) + "?"},
                                          {"from": "gpt", "value": text(100 + i, 3 + 5 * (i % 4))}]})
    (folder / "train.json").write_text(json.dumps(records))


def write_worst_data(folder, images, words, samples):
    """Samples that are all alike, so that each step is the worst that was planned for."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"noise-{i}.png" for i in range(images)]
    for i, name in enumerate(names):
        write_noise(folder / name, 1024, 768, i)
    answer = " ".join(["word"] * words)
    records = [{"id": f"worst-{i}", "image": names,
                "conversations": [{"from": "human", "value": "<image>\n" * images + "What is shown?"},
                                  {"from": "gpt", "value": answer}]} for i in range(samples)]
    (folder / "train.json").write_text(json.dumps(records))


def write_varied_data(folder, samples):
    """Answers whose lengths are spread log-normally, as in instruction data, with one picture each."""
    folder.mkdir(parents=True, exist_ok=True)
    source = random.Random(7)
    for i in range(4):
        write_noise(folder / f"{i}.png", 320 + 64 * i, 240, i)
    records = []
    for i in range(samples):
        words = int(min(600, max(20, source.lognormvariate(math.log(110), 0.9))))
        records.append({"id": f"sample-{i:04d}", "image": [f"{i % 4}.png"],
                        "conversations": [{"from": "human", "value": "<image>\n" + text(i, 8) + "?"},
                                          {"from": "gpt", "value": text(1000 + i, words)}]})
    (folder / "train.json").write_text(json.dumps(records))


def write_tokenizer(preset, path):
    """A tokenizer.json with the ids that a SmolVLM preset's config.json names: the tiny preset's, with words that no text
    has in between. For presets that come without one, where nothing can be fetched."""
    models = ROOT / "configs" / "models"
    tokenizer = json.loads((models / "smolvlm-tiny" / "tokenizer.json").read_text())
    added = json.loads((models / preset / "added_tokens.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    for number in range(len(vocabulary), min(added.values())):
        vocabulary[f"<unused {number}>"] = number
    kept = [token for token in tokenizer["added_tokens"] if token["id"] < 3]
    tokenizer["added_tokens"] = kept + [{**kept[0], "id": number, "content": content}
                                        for content, number in sorted(added.items(), key=lambda item: item[1])]
    path.write_text(json.dumps(tokenizer))
    return path


def clear(folder):
    shutil.rmtree(folder, ignore_errors=True)
