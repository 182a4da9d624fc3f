"""Inputs of the checks: tiny checkpoints of `vlmtrain init`, synthetic images, conversations. The bytes are reproducible."""

import json
import math
import random
import shutil
import struct
import zlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
WORDS = ("the a red green blue yellow circle square triangle star is in left right upper lower corner of picture what colour "
         "where how many shapes are there one two three").split()


def write_png(path, width, height, pixels):
    """Writes a PNG file. `pixels`: bytes, three per pixel, row by row."""
    rows = b"".join(b"\0" + pixels[y * width * 3:(y + 1) * width * 3] for y in range(height))

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 1)) + chunk(b"IEND", b""))


def write_noise(path, width, height, seed):
    """Writes an image of noise, whose file is as large as an image file gets."""
    write_png(path, width, height, random.Random(seed).randbytes(width * height * 3))


def write_waves(path, width, height, seed):
    """Writes an image of smooth colors, whose structure survives resizing and averaging."""
    pixels = bytearray()
    for y in range(height):
        for x in range(width):
            for channel in range(3):
                phase = (seed + 1) * (channel + 1) * 0.7 + x * (0.02 + 0.01 * channel) + y * (0.05 - 0.01 * channel)
                pixels.append(int(127.5 + 127 * math.sin(phase)))
    write_png(path, width, height, bytes(pixels))


def write_config(path, settings):
    """Writes a YAML configuration from {"section.key": value}."""
    sections = {}
    for key, value in settings.items():
        section, name = key.split(".", 1)
        value = str(value).lower() if isinstance(value, bool) else value
        sections.setdefault(section, []).append(f"  {name}: {value}\n")
    path.write_text("".join(f"{section}:\n" + "".join(lines) for section, lines in sections.items()))


def text(seed, count):
    return " ".join(random.Random(seed).choices(WORDS, k=count))


SMALL_DATA = [[0], [1], [], [2], [0, 1], [1], [2], [0]]
MIXED_DATA = [[0], [], [], [2], [0, 1], [], [2], []]


def write_small_data(folder, images=None):
    """Writes eight samples that differ in length, images and sizes. `images`: number of images of each; by default one has none and
    one has two."""
    folder.mkdir(parents=True, exist_ok=True)
    sizes = [(224, 224), (300, 180), (150, 260)]
    for i, (width, height) in enumerate(sizes):
        write_waves(folder / f"{i}.png", width, height, i)
    records = []
    for i, used in enumerate(images or SMALL_DATA):
        records.append({"id": f"sample-{i}", "image": [f"{number}.png" for number in used],
                        "conversations": [{"from": "human", "value": "<image>\n" * len(used) + text(i, 4 + i) + "?"},
                                          {"from": "gpt", "value": text(100 + i, 3 + 5 * (i % 4))}]})
    (folder / "train.json").write_text(json.dumps(records))


def write_worst_data(folder, images, words, samples):
    """Writes identical samples, so that each step is the planned worst case."""
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
    """Writes records with one image and an answer of log-normal length, as in instruction data."""
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


# Special tokens of models whose presets have no added_tokens.json, with the ids of the published tokenizers.
QWEN_VL_TOKENS = {content: 151643 + i for i, content in enumerate([
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>", "<|box_end|>",
    "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"])}


QWEN3_5_TOKENS = {content: index - 151643 + 248044 for content, index in QWEN_VL_TOKENS.items()}


def special_tokens(preset):
    """Returns the preset of the same family that has a tokenizer, and the ids of special tokens by content."""
    if preset.startswith("qwen3.5"):
        return "qwen3.5-tiny", QWEN3_5_TOKENS
    if preset.startswith("qwen"):
        return "qwen2.5-vl-tiny" if preset.startswith("qwen2.5") else "qwen3-vl-tiny", QWEN_VL_TOKENS
    added = json.loads((ROOT / "configs" / "models" / preset / "added_tokens.json").read_text())
    if preset.startswith("llava"):
        return "llava-tiny", {"<unk>": 0, "<s>": 1, "</s>": 2, **added}
    return "smolvlm-tiny", {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2, **added}


def write_tokenizer(preset, path):
    """Writes a tokenizer.json for a preset without one, for machines without downloads. Returns its path.

    Special tokens have the ids of the preset's config.json. The other tokens are those of the family's tiny preset, and the
    remaining ids are tokens that no text contains.
    """
    tiny, special = special_tokens(preset)
    tokenizer = json.loads((ROOT / "configs" / "models" / tiny / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    for content, number in [(content, number) for content, number in vocabulary.items() if special.get(content, number) != number]:
        del vocabulary[content]
        vocabulary[f"<unused {number}>"] = number
    for number in range(len(vocabulary), min(number for number in special.values() if number >= len(vocabulary))):
        vocabulary[f"<unused {number}>"] = number
    template = tokenizer["added_tokens"][0]
    tokenizer["added_tokens"] = [{**template, "id": number, "content": content}
                                 for content, number in sorted(special.items(), key=lambda item: item[1])]
    path.write_text(json.dumps(tokenizer))
    return path


def clear(folder):
    shutil.rmtree(folder, ignore_errors=True)
