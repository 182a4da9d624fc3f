#!/usr/bin/env python3
"""Draws the quickstart's data set: small images of shapes, with questions and answers in LLaVA format.

    scripts/make_shapes.py --out quickstart/data

Writes DIR/images/*.jpg, DIR/train.json (several questions per image) and DIR/held_out.json (one question per record,
equally many of each kind). Needs Python 3.11, Pillow and NumPy. The same seed gives the same scenes and questions.

A scene has one to three shapes, at most one in each quadrant, no two of the same form or colour. The tasks of the held-out
questions:

    colour    What colour is the shape?     (one shape)
    form      What form is the shape?       (one shape)
    count     How many shapes are there?
    position  Where is the circle?
    binding   What colour is the circle?    (two or three shapes)

Held-out images come from a separate random stream and repeat no scene (forms, colors, centers, sizes and angles) of the
training set.
"""

import argparse
import json
import math
import random
from dataclasses import dataclass
from multiprocessing import Pool
from pathlib import Path

import numpy
from PIL import Image, ImageDraw

COLOURS = {
    "red": (214, 40, 40),
    "green": (44, 160, 60),
    "blue": (45, 85, 220),
    "yellow": (238, 214, 50),
    "purple": (160, 60, 190),
    "white": (240, 240, 240),
}
FORMS = ("circle", "square", "triangle", "cross")
PLACES = ("top left", "top right", "bottom left", "bottom right")
MOST_SHAPES = 3
QUESTIONS_PER_IMAGE = 3

SUPERSAMPLING = 4
JPEG_QUALITY = 90


@dataclass(frozen=True)
class Shape:
    """A shape. Lengths are in units of the image's side."""

    form: str
    colour: str
    place: str
    x: float
    y: float
    radius: float
    angle: float


@dataclass(frozen=True)
class Question:
    task: str
    text: str
    answer: str


def random_scene(rng, count):
    forms = rng.sample(FORMS, count)
    colours = rng.sample(sorted(COLOURS), count)
    places = rng.sample(PLACES, count)
    return tuple(random_shape(rng, *names) for names in zip(forms, colours, places))


def random_shape(rng, form, colour, place):
    """Places the shape near the middle of its quadrant, inside the quadrant's border."""
    radius = rng.uniform(0.18, 0.22)
    slack = min(0.24 - radius, 0.03)
    x = 0.25 + 0.5 * ("right" in place) + rng.uniform(-slack, slack)
    y = 0.25 + 0.5 * ("bottom" in place) + rng.uniform(-slack, slack)
    return Shape(form, colour, place, round(x, 3), round(y, 3), round(radius, 3), round(rng.uniform(-10, 10), 1))


def count_question(scene):
    return Question("count", "How many shapes are there?", str(len(scene)))


def colour_question(shape):
    return Question("colour", "What colour is the shape?", shape.colour)


def form_question(shape):
    return Question("form", "What form is the shape?", shape.form)


def position_question(shape):
    return Question("position", f"Where is the {shape.form}?", shape.place)


def binding_question(shape):
    return Question("binding", f"What colour is the {shape.form}?", shape.colour)


def description(rng, scene):
    """Returns a description that names every shape in random order, so that the color and place after a form require finding
    that form in the image. It has the most facts for its length. The training set asks for one with every image, last, where
    it cannot reveal another answer."""
    shapes = rng.sample(scene, len(scene))
    return Question("description", "Describe the shapes.", ", ".join(f"{s.form} {s.colour} {s.place}" for s in shapes))


def training_questions(rng, scene):
    """Returns questions none of which reveals the answer to another."""
    questions = [count_question(scene)]
    if len(scene) == 1:
        questions += [colour_question(scene[0]), rng.choice((form_question, position_question))(scene[0])]
    else:
        for shape in scene:
            questions += [position_question(shape), binding_question(shape)]
    return [*rng.sample(questions, QUESTIONS_PER_IMAGE), description(rng, scene)]


# Task → minimum and maximum number of shapes in its scenes, and the function that makes a question.
TASKS = {
    "colour": (1, 1, lambda rng, scene: colour_question(scene[0])),
    "form": (1, 1, lambda rng, scene: form_question(scene[0])),
    "count": (1, MOST_SHAPES, lambda rng, scene: count_question(scene)),
    "position": (1, MOST_SHAPES, lambda rng, scene: position_question(rng.choice(scene))),
    "binding": (2, MOST_SHAPES, lambda rng, scene: binding_question(rng.choice(scene))),
}


def outline(shape):
    """Returns the corners of a shape's polygon in units of its radius, before rotation."""
    if shape.form == "square":
        return [(-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85)]
    if shape.form == "triangle":
        return [(math.cos(math.radians(a)), math.sin(math.radians(a)) + 0.15) for a in (-90, 30, 150)]
    arm = 0.3
    return [(-arm, -1), (arm, -1), (arm, -arm), (1, -arm), (1, arm), (arm, arm),
            (arm, 1), (-arm, 1), (-arm, arm), (-1, arm), (-1, -arm), (-arm, -arm)]  # fmt: skip


def draw_shape(draw, shape, fill, side):
    x, y, radius = shape.x * side, shape.y * side, shape.radius * side
    if shape.form == "circle":
        radius *= 0.92
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=fill)
        return
    sine, cosine = math.sin(math.radians(shape.angle)), math.cos(math.radians(shape.angle))
    corners = [(x + radius * (u * cosine - v * sine), y + radius * (u * sine + v * cosine)) for u, v in outline(shape)]
    draw.polygon(corners, fill=fill)


def background(rng, side):
    """Returns a gray gradient between two random shades, in a random direction."""
    low, high = (rng.integers(15, 65, size=1) + rng.integers(-6, 7, size=3) for _ in range(2))
    direction = rng.uniform(0, 2 * math.pi)
    axis = numpy.linspace(-0.5, 0.5, side)
    ramp = 0.5 + 0.7 * (axis[None, :] * math.cos(direction) + axis[:, None] * math.sin(direction))
    pixels = low + (high - low) * ramp.clip(0, 1)[:, :, None]
    return Image.fromarray(pixels.astype(numpy.uint8))


def draw_clutter(draw, rng, side):
    """Draws thin gray lines and dots as a background of the shapes."""
    for _ in range(rng.integers(0, 4)):
        shade = int(rng.integers(10, 120))
        draw.line([int(v) for v in rng.integers(0, side, size=4)], fill=(shade,) * 3, width=side // 64)
    for _ in range(rng.integers(0, 7)):
        shade, radius = int(rng.integers(10, 130)), side / 90
        x, y = rng.uniform(0, side, size=2)
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=(shade,) * 3)


def draw_scene(scene, seed, image_size):
    rng = numpy.random.default_rng(seed)
    side = image_size * SUPERSAMPLING
    source_image = background(rng, image_size).resize((side, side), Image.BILINEAR)
    draw = ImageDraw.Draw(source_image)
    draw_clutter(draw, rng, side)
    for shape in scene:
        tint = numpy.array(COLOURS[shape.colour]) + rng.integers(-14, 15, size=3)
        draw_shape(draw, shape, tuple(int(v) for v in tint.clip(0, 255)), side)
    pixels = numpy.asarray(source_image.reduce(SUPERSAMPLING), dtype=numpy.float32)
    pixels = pixels + rng.normal(0, 5, size=pixels.shape)
    return Image.fromarray(pixels.clip(0, 255).astype(numpy.uint8))


def save_image(job):
    path, scene, seed, image_size = job
    draw_scene(scene, seed, image_size).save(path, quality=JPEG_QUALITY)


def record(name, image, task, questions):
    conversations = []
    for number, question in enumerate(questions):
        prefix = "<image>\n" if number == 0 else ""
        conversations.append({"from": "human", "value": prefix + question.text})
        conversations.append({"from": "gpt", "value": question.answer})
    return {"id": name, "image": image, "task": task, "conversations": conversations}


def new_scene(rng, seen, fewest_shapes, most_shapes):
    """Returns a random scene that is not in `seen`, and adds it."""
    while True:
        scene = random_scene(rng, rng.randint(fewest_shapes, most_shapes))
        if frozenset(scene) not in seen:
            seen.add(frozenset(scene))
            return scene


def new_sample(split, index, rng, seen):
    """Returns a scene, the task of its questions, and the questions."""
    if split == "train":
        scene = new_scene(rng, seen, 1, MOST_SHAPES)
        return scene, "mixed", training_questions(rng, scene)
    task = list(TASKS)[index % len(TASKS)]
    fewest_shapes, most_shapes, question = TASKS[task]
    scene = new_scene(rng, seen, fewest_shapes, most_shapes)
    return scene, task, [question(rng, scene)]


def make_split(split, count, seed, seen):
    """Returns the split's records and its images as (file name, scene, seed)."""
    rng = random.Random(f"{split} {seed}")
    records, images = [], []
    for index in range(count):
        scene, task, questions = new_sample(split, index, rng, seen)
        name = f"{split}_{index:05d}"
        records.append(record(name, f"images/{name}.jpg", task, questions))
        images.append((f"images/{name}.jpg", scene, rng.getrandbits(63)))
    return records, images


def make_data(out, train_count, held_out_count, seed, image_size, processes):
    (out / "images").mkdir(parents=True, exist_ok=True)
    seen, jobs = set(), []
    for split, count in (("train", train_count), ("held_out", held_out_count)):
        records, images = make_split(split, count, seed, seen)
        (out / f"{split}.json").write_text(json.dumps(records, indent=1) + "\n")
        jobs += [(out / file, scene, image_seed, image_size) for file, scene, image_seed in images]
    with Pool(processes) as pool:
        pool.map(save_image, jobs, chunksize=64)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--train", type=int, default=8000, metavar="N", help="number of training images (default: %(default)s)")
    parser.add_argument(
        "--held-out", type=int, default=500, metavar="M", help="number of held-out questions, one image each (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--image-size", type=int, default=64, metavar="SIDE", help="side of an image, in pixels (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=2, help="number of drawing processes (default: %(default)s)")
    options = parser.parse_args()
    make_data(options.out, options.train, options.held_out, options.seed, options.image_size, options.processes)
    print(f"{options.train} training images and {options.held_out} held-out questions are in {options.out}")


if __name__ == "__main__":
    main()
