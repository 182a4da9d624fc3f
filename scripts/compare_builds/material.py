"""Inputs of the cases: tiny checkpoints of every family with a tiny preset, synthetic images, conversations."""

import json
import random
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "gpu_queue" / "harness"))

import inputs  # noqa: E402

PRESETS = ("smolvlm-tiny", "llava-tiny", "qwen2.5-vl-tiny", "nanovlm-tiny", "qwen3-vl-tiny", "qwen3.5-tiny", "internvl3-tiny", "internvl3.5-tiny",
           "gemma-3-tiny", "gemma-4-tiny")
TASKS = ("colour", "count", "place")
SIZES = ((64, 64), (120, 72), (56, 140), (200, 160))
FRAMES = 4
SEED = 5


def make(vlmtrain, folder):
    """Creates the inputs once, with `vlmtrain`, one of the two builds. The case `init` compares the checkpoints of both."""
    if (folder / "done").exists():
        return
    for preset in PRESETS:
        inputs.clear(folder / preset)
        subprocess.run([vlmtrain, "init", "--preset", preset, "--out", folder / preset, "--seed", str(SEED)], check=True, capture_output=True)
    write_data(folder / "data")
    (folder / "done").touch()


def write_data(folder):
    """Writes mixed.json: 48 samples in three tasks, with up to two images and answers of 2 to 120 words; single.json: 24 with one
    image and one task; videos.json: 12 with images, videos or both; held_out.json: 8 with short answers."""
    folder.mkdir(parents=True, exist_ok=True)
    for i, (width, height) in enumerate(SIZES):
        inputs.write_waves(folder / f"{i}.png", width, height, i)
    for video in range(2):
        (folder / f"video-{video}").mkdir(exist_ok=True)
        for frame in range(FRAMES):
            inputs.write_waves(folder / f"video-{video}" / f"{frame}.png", 84, 56 + 28 * video, 10 * video + frame)
    source = random.Random(SEED)

    def images(count):
        return [f"{source.randrange(len(SIZES))}.png" for _ in range(count)]

    def words(most):
        return min(most, max(2, int(source.lognormvariate(3, 1))))

    write_records(folder / "mixed.json", [(images(i % 3), [], TASKS[i * i % 3], words(120)) for i in range(48)])
    write_records(folder / "single.json", [(images(1), [], None, words(40)) for _ in range(24)])
    write_records(folder / "videos.json",
                  [(images(i % 2), [f"video-{i % 2}"] if i % 3 else [], None, words(40)) for i in range(12)])
    write_records(folder / "held_out.json", [(images(i % 2), [], TASKS[i % 3], 3) for i in range(8)])


def write_records(path, samples):
    records = []
    for i, (images, videos, task, words) in enumerate(samples):
        marks = "<image>\n" * len(images) + "<video>\n" * len(videos)
        record = {"id": f"{path.stem}-{i}", "image": images,
                  "conversations": [{"from": "human", "value": marks + inputs.text(i, 3 + i % 7) + "?"},
                                    {"from": "gpt", "value": inputs.text(1000 + i, words)}]}
        if videos:
            record["video"] = videos
        if task:
            record["task"] = task
        records.append(record)
    path.write_text(json.dumps(records))
