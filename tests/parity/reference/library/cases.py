"""A case of a reference: a small model, samples, and the images and videos that the samples name."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from library import test_images
from library.conversation import image_paths

# File name -> (width, height, seed, mode).
IMAGES = {
    "cat.png": (70, 53, 1, "RGB"), "wide.jpg": (90, 31, 2, "RGB"), "tall.png": (30, 81, 3, "L"), "small.png": (11, 9, 4, "RGB"),
}
# Folders of frames, 2 a second: name -> (frames, width, height, seed).
VIDEOS = {"ball": (10, 40, 27, 5), "door": (5, 22, 46, 6)}


@dataclass
class Case:
    """One small model and its samples.

    shape: of the checkpoint, a type of each family. generate: id of the sample whose first turn is answered. images: as IMAGES;
    None: those of IMAGES that the samples name.
    """

    name: str
    about: str
    shape: Any
    samples: list[dict]
    generate: str | None = None
    images: dict[str, tuple] | None = None


def sample(name, images, *turns):
    record = {"id": name}
    if images:
        record["image"] = images[0] if len(images) == 1 else images
    record["conversations"] = [
        {"from": "human" if index % 2 == 0 else "gpt", "value": value} for index, value in enumerate(turns)
    ]
    return record


def with_video(record, name):
    return {"id": record["id"], "video": name} | {key: value for key, value in record.items() if key != "id"}


ONE = sample("one", ["cat.png"], "<image>\nWhat is shown in this picture?", "A cat on the table, near 2 balls.")
TWO = sample(
    "two", ["wide.jpg", "tall.png"],
    "<image>\n<image>\nCompare the two pictures.", "The first one has more contrast.", "Say more.", "There is no fluid.",
)
THREE = sample(
    "three", ["tall.png", "small.png", "cat.png"],
    "<image>\nDescribe the first image.", "It shows the right kidney with a stone.",
    "And these, <image> and <image>?", "No, there is none; the outline is smooth.",
)
WORDS = sample("words", [], "Is there a fracture? Grüße, 東京", "No, there is none. Ça va")
MOVING = with_video(sample("moving", [], "<video>\nWhat has changed?", "The third is darker."), "ball")
BOTH = with_video(
    sample("both", ["small.png"], "<video>\n<image>\nIs the ball in the picture?", "There is no ball.", "Sure?", "Yes."), "door"
)


def write_video(folder, frames, width, height, seed):
    for index in range(frames):
        image = test_images.draw(width, height, seed).point(lambda value, shift=7 * index: (value + shift) % 256)
        test_images.save(image, folder / f"frame_{index:02d}.png")


def write_inputs(case, folder):
    """Writes conversations.json, and images and videos into images/."""
    named = {str(path) for record in case.samples for path in image_paths(record, "")}
    images = {name: IMAGES[name] for name in named} if case.images is None else case.images
    for name, (width, height, seed, mode) in images.items():
        test_images.save(test_images.draw(width, height, seed, mode), folder / "images" / name)
    for name in {record["video"] for record in case.samples if "video" in record}:
        write_video(folder / "images" / name, *VIDEOS[name])
    write_json(folder / "conversations.json", case.samples)


def write_json(path, value, indent=2):
    path.write_text(json.dumps(value, indent=indent, ensure_ascii=False) + "\n")


def write_lines(path, values):
    """Writes a list with one value a line."""
    path.write_text("[\n" + ",\n".join(json.dumps(value, ensure_ascii=False) for value in values) + "\n]\n")


def write_tables(path, tables):
    """Writes an object of lists with one value a line."""
    lines = ",\n".join(f'"{key}": [\n' + ",\n".join(map(json.dumps, values)) + "\n]" for key, values in tables.items())
    path.write_text("{\n" + lines + "\n}\n")


def read_json(path):
    return json.loads(Path(path).read_text())
