#!/usr/bin/env python3
"""Draws the data set of the masks' example: ultrasound-like images, a question that names a structure, and its mask.

    scripts/make_organs.py --out masks/data

Writes DIR/images/*.png, DIR/masks/*.png, DIR/train.json and DIR/held_out.json. Needs Python 3.11, Pillow and NumPy. The
same seed gives the same images and questions. The images are not anatomical: five structures have random places in
speckle and differ in brightness, rim or core.

Training questions ask for one structure ("Segment the kidney."), for two, or for no mask ("On which side is the
kidney?"). Held-out questions ask for one structure, each equally often. A record's masks are alternately PNG files and
COCO run lengths. At the end it prints the score of a mask that ignores the text: for each image the union of structures
with the best mean Dice over all five questions.
"""

import argparse
import itertools
import json
import math
import random
from dataclasses import dataclass
from multiprocessing import Pool
from pathlib import Path

import numpy
from PIL import Image

SIDE = 128
STRUCTURES = ("liver", "kidney", "gallbladder", "bone", "tumour")
PLACES = ("upper left", "upper right", "lower left", "lower right")
ASKED = ("Segment the {}.", "Where is the {}?", "Show the {}.")
BACKGROUND = 0.36
SPECKLE = 0.16


@dataclass(frozen=True)
class Structure:
    """An ellipse; lengths in pixels."""

    name: str
    x: float
    y: float
    long: float
    short: float
    angle: float

    @property
    def place(self):
        return f"{'upper' if self.y < SIDE / 2 else 'lower'} {'left' if self.x < SIDE / 2 else 'right'}"

    def radius(self):
        """Returns [SIDE, SIDE]: a value per pixel, 1 on the edge, less inside."""
        rows, columns = numpy.mgrid[0:SIDE, 0:SIDE] + 0.5
        along = (columns - self.x) * math.cos(self.angle) + (rows - self.y) * math.sin(self.angle)
        across = (rows - self.y) * math.cos(self.angle) - (columns - self.x) * math.sin(self.angle)
        wobble = 1.0
        if self.name == "tumour":
            wobble = 1 + 0.08 * numpy.sin(5 * numpy.arctan2(across / self.short, along / self.long) + self.angle * 7)
        return numpy.sqrt((along / self.long) ** 2 + (across / self.short) ** 2) / wobble

    def mask(self):
        return self.radius() <= 1


def scene(stream):
    """Returns five structures that do not touch."""
    while True:
        placed = []
        for name in STRUCTURES:
            for _ in range(60):
                long = stream.uniform(15, 20)
                short = long * stream.uniform(0.6, 0.85)
                x, y = stream.uniform(long, SIDE - long), stream.uniform(long, SIDE - long)
                one = Structure(name, x, y, long, short, stream.uniform(0, math.pi))
                if all(math.hypot(one.x - other.x, one.y - other.y) > one.long + other.long + 1 for other in placed):
                    placed.append(one)
                    break
        if len(placed) == len(STRUCTURES):
            return placed


def draw(structures, noise):
    source_image = numpy.full((SIDE, SIDE), BACKGROUND)
    source_image += 0.08 * numpy.linspace(1, -1, SIDE)[:, None]  # sound fades with depth
    for one in structures:
        radius = one.radius()
        inside = radius <= 1
        if one.name == "liver":
            source_image[inside] = 0.6
        elif one.name == "kidney":
            source_image[inside] = 0.6
            source_image[radius <= 0.55] = 0.85
        elif one.name == "gallbladder":
            source_image[inside] = 0.8
            source_image[radius <= 0.75] = 0.04
        elif one.name == "bone":
            source_image[inside] = 0.97
        else:
            source_image[inside] = 0.15
    speckled = source_image * (1 + SPECKLE * noise.standard_normal((SIDE, SIDE))) + 0.02 * noise.standard_normal((SIDE, SIDE))
    return (speckled.clip(0, 1) * 255).round().astype(numpy.uint8)


def run_lengths(mask):
    """Returns COCO's run lengths, column by column."""
    flat = mask.flatten(order="F").astype(numpy.int8)
    ends = numpy.flatnonzero(numpy.diff(flat)) + 1
    counts = numpy.diff(numpy.concatenate([[0], ends, [flat.size]])).tolist()
    return {"size": list(mask.shape), "counts": [0, *counts] if flat[0] else counts}


def mask_entry(folder, name, one, as_file):
    mask = one.mask()
    if not as_file:
        return {**run_lengths(mask), "structure": one.name}
    path = Path("masks") / f"{name}_{one.name}.png"
    Image.fromarray(mask.astype(numpy.uint8) * 255).save(folder / path)
    return {"path": str(path), "structure": one.name}


def record(identifier, image, task, question, answer, masks=None):
    entry = {
        "id": identifier,
        "image": image,
        "task": task,
        "conversations": [{"from": "human", "value": f"<image>\n{question}"}, {"from": "gpt", "value": answer}],
    }
    return entry | {"masks": masks} if masks else entry


def of_one(identifier, image, one, question, entry):
    return record(identifier, image, "one", question.format(one.name), f"{one.name} <SEG>, {one.place}", [entry])


def make_records(folder, name, structures, stream, held_out_number):
    image = f"images/{name}.png"
    as_file = [number % 2 == 0 for number in range(3)]
    if held_out_number is not None:
        one = structures[held_out_number % len(structures)]
        entry = mask_entry(folder, name, one, held_out_number % 2 == 0)
        return [of_one(name, image, one, ASKED[0], entry)]
    built_items = []
    sampled = stream.sample(structures, 5)
    for number, one in enumerate(sampled[:2]):
        entry = mask_entry(folder, name, one, as_file[number])
        built_items.append(of_one(f"{name}_{number}", image, one, stream.choice(ASKED), entry))
    first, second = sampled[2:4]
    if stream.random() < 0.7:
        entries = [mask_entry(folder, name, first, False), mask_entry(folder, name, second, True)]
        built_items.append(record(f"{name}_two", image, "two", f"Segment the {first.name} and the {second.name}.",
                           f"{first.name} <SEG>, {first.place} and {second.name} <SEG>, {second.place}", entries))
    else:
        built_items.append(record(f"{name}_side", image, "side", f"On which side is the {sampled[4].name}?",
                           sampled[4].place.split()[1]))
    return built_items


def deaf_dice(structures):
    """Returns the best mean Dice over all questions of one mask, a union of structures."""
    areas = [one.mask().sum() for one in structures]
    best = 0.0
    for count in range(1, len(areas) + 1):
        for union in itertools.combinations(range(len(areas)), count):
            total = sum(areas[i] for i in union)
            best = max(best, sum(2 * areas[i] / (areas[i] + total) for i in union) / len(areas))
    return best


def make(job):
    folder, part, number, seed = job
    stream = random.Random(f"{seed} {part} {number}")
    structures = scene(stream)
    name = f"{part}_{number:05d}"
    noise = numpy.random.default_rng(stream.getrandbits(64))
    Image.fromarray(draw(structures, noise)).save(folder / "images" / f"{name}.png")
    held_out_number = number if part == "held_out" else None
    return make_records(folder, name, structures, stream, held_out_number), deaf_dice(structures)


def sentences():
    """Returns all questions and answers, for the tokenizer of prs-med-tiny."""
    for name in STRUCTURES:
        yield from (question.format(name) for question in ASKED)
        yield f"On which side is the {name}?"
        yield from (f"Segment the {name} and the {other}." for other in STRUCTURES if other != name)
    for place in PLACES:
        yield f", {place}"
        yield from (f", {place} and {name} " for name in STRUCTURES)
    yield "left"
    yield "right"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--images", "--pictures", type=int, default=3000, help="number of training images")
    parser.add_argument("--held-out", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    for name in ("images", "masks"):
        (arguments.out / name).mkdir(parents=True, exist_ok=True)
    for part, count in (("train", arguments.images), ("held_out", arguments.held_out)):
        with Pool() as pool:
            built_items = pool.map(make, [(arguments.out, part, number, arguments.seed) for number in range(count)], chunksize=16)
        records = [one for own, _ in built_items for one in own]
        (arguments.out / f"{part}.json").write_text(json.dumps(records))
        deaf = sum(dice for _, dice in built_items) / max(len(built_items), 1)
        print(f"{part}: {count} images, {len(records)} records; the best mask that ignores the text has a mean Dice of "
              f"{deaf:.3f}")


if __name__ == "__main__":
    main()
