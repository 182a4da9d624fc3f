#!/usr/bin/env python3
"""Draws the quickstart's data set: small pictures of shapes, with questions and answers in LLaVA format.

    scripts/make_shapes.py --out quickstart/data

writes DIR/images/*.jpg, DIR/train.json (several questions a picture) and DIR/held_out.json (one question a record,
equally many of each kind). Needs Python 3.11, Pillow and NumPy. The same seed gives the same scenes and questions.

A scene has one to three shapes, at most one in each quadrant, no two of the same form or colour. A question names a
shape by its form, its colour or its place, and asks for one of the other two, so with several shapes it can only be
answered by binding form, colour and place to each other. Held-out pictures come from a random stream of their own, and
no scene (forms, colours, centres, sizes and angles) of the training set is drawn again.
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
QUESTIONS_A_PICTURE = 3
TASKS = ("colour", "form", "position", "count", "binding")

SUPERSAMPLING = 4
JPEG_QUALITY = 90


@dataclass(frozen=True)
class Shape:
    """Lengths are in units of the picture's side."""

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


def random_scene(rng):
    count = rng.randint(1, MOST_SHAPES)
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


def questions_about_shape(rng, shape):
    """Names the shape by one of its three attributes and asks for the two others, so neither answer gives the other."""
    key = rng.choice(("form", "colour", "place"))
    name = {"form": f"the {shape.form}", "colour": f"the {shape.colour} shape", "place": f"the shape at the {shape.place}"}[key]
    questions = {
        "colour": Question("colour", f"What colour is {name}?", shape.colour),
        "form": Question("form", f"What form is {name}?", shape.form),
        "place": Question("position", f"Where is {name}?", shape.place),
    }
    del questions[key]
    return list(questions.values())


def binding_question(rng, scene):
    """Asks for a colour and a form together. Yes and no are equally likely; a no names, where the scene has several
    shapes, the form of one and the colour of another, so that seeing either of them somewhere says nothing."""
    shape = rng.choice(scene)
    colour, form, answer = shape.colour, shape.form, "yes"
    if rng.random() < 0.5:
        answer = "no"
        others = [other for other in scene if other is not shape]
        if others:
            colour = rng.choice(others).colour
        elif rng.random() < 0.5:
            colour = rng.choice([name for name in COLOURS if name != colour])
        else:
            form = rng.choice([name for name in FORMS if name != form])
    return Question("binding", f"Is there a {colour} {form}?", answer)


def count_question(scene):
    return Question("count", "How many shapes are there?", str(len(scene)))


def description(scene):
    """Names every shape, in the order of the places. It has the most facts for its length, so the training set asks for
    one with every picture, last, where it cannot give away another answer."""
    shapes = sorted(scene, key=lambda shape: PLACES.index(shape.place))
    return Question("description", "Describe the picture.", ", ".join(f"{s.colour} {s.form} {s.place}" for s in shapes))


def training_questions(rng, scene):
    questions = [count_question(scene), binding_question(rng, scene)]
    for shape in scene:
        questions += questions_about_shape(rng, shape)
    return [*rng.sample(questions, QUESTIONS_A_PICTURE), description(scene)]


def held_out_question(rng, scene, task):
    if task == "count":
        return count_question(scene)
    if task == "binding":
        return binding_question(rng, scene)
    while True:
        for question in questions_about_shape(rng, rng.choice(scene)):
            if question.task == task:
                return question


def outline(shape):
    """The corners of a shape's polygon in units of its radius, before it is turned."""
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
    """A grey gradient between two random shades, in a random direction."""
    low, high = (rng.integers(15, 65, size=1) + rng.integers(-6, 7, size=3) for _ in range(2))
    direction = rng.uniform(0, 2 * math.pi)
    axis = numpy.linspace(-0.5, 0.5, side)
    ramp = 0.5 + 0.7 * (axis[None, :] * math.cos(direction) + axis[:, None] * math.sin(direction))
    pixels = low + (high - low) * ramp.clip(0, 1)[:, :, None]
    return Image.fromarray(pixels.astype(numpy.uint8))


def draw_clutter(draw, rng, side):
    """Thin grey lines and dots, behind the shapes."""
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
    picture = background(rng, image_size).resize((side, side), Image.BILINEAR)
    draw = ImageDraw.Draw(picture)
    draw_clutter(draw, rng, side)
    for shape in scene:
        tint = numpy.array(COLOURS[shape.colour]) + rng.integers(-14, 15, size=3)
        draw_shape(draw, shape, tuple(int(v) for v in tint.clip(0, 255)), side)
    pixels = numpy.asarray(picture.reduce(SUPERSAMPLING), dtype=numpy.float32)
    pixels = pixels + rng.normal(0, 5, size=pixels.shape)
    return Image.fromarray(pixels.clip(0, 255).astype(numpy.uint8))


def save_picture(job):
    path, scene, seed, image_size = job
    draw_scene(scene, seed, image_size).save(path, quality=JPEG_QUALITY)


def record(name, image, questions, **more):
    conversations = []
    for number, question in enumerate(questions):
        prefix = "<image>\n" if number == 0 else ""
        conversations.append({"from": "human", "value": prefix + question.text})
        conversations.append({"from": "gpt", "value": question.answer})
    return {"id": name, "image": image, **more, "conversations": conversations}


def new_scenes(rng, count, seen):
    """Random scenes that are not in `seen`, to which they are added."""
    scenes = []
    while len(scenes) < count:
        scene = random_scene(rng)
        key = frozenset(scene)
        if key not in seen:
            seen.add(key)
            scenes.append(scene)
    return scenes


def make_data(out, train_count, held_out_count, seed, image_size, processes):
    (out / "images").mkdir(parents=True, exist_ok=True)
    seen, jobs = set(), []
    for split, count in (("train", train_count), ("held_out", held_out_count)):
        rng = random.Random(f"{split} {seed}")
        records = []
        for index, scene in enumerate(new_scenes(rng, count, seen)):
            name = f"{split}_{index:05d}"
            image = f"images/{name}.jpg"
            jobs.append((out / image, scene, rng.getrandbits(63), image_size))
            if split == "train":
                records.append(record(name, image, training_questions(rng, scene), task="mixed"))
            else:
                task = TASKS[index % len(TASKS)]
                records.append(record(name, image, [held_out_question(rng, scene, task)], task=task))
        (out / f"{split}.json").write_text(json.dumps(records, indent=1) + "\n")
    with Pool(processes) as pool:
        pool.map(save_picture, jobs, chunksize=64)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--train", type=int, default=8000, metavar="N", help="training pictures (default: %(default)s)")
    parser.add_argument("--held-out", type=int, default=500, metavar="M", help="held-out questions, each on a picture of its own (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--image-size", type=int, default=64, help="side in pixels (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=2, help="how many draw (default: %(default)s)")
    arguments = parser.parse_args()
    make_data(arguments.out, arguments.train, arguments.held_out, arguments.seed, arguments.image_size, arguments.processes)
    print(f"{arguments.train} training pictures and {arguments.held_out} held-out questions are in {arguments.out}")


if __name__ == "__main__":
    main()
