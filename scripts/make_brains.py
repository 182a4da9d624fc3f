#!/usr/bin/env python3
"""Draws the data set of the volumes' example: scans of heads as NIfTI files, with questions on one, two or two people.

    scripts/make_brains.py --out volumes/data

Writes DIR/scans/*.nii and *.nii.gz, DIR/train.json and DIR/held_out.json. Needs Python 3.11 and NumPy. The same seed
gives the same scans and questions. The scans are not anatomical: a head is a few ellipsoids, a lesion is a sphere.

Each subject has a T1w scan (white matter brighter than gray, gray than water) and a T2w scan (the reverse), each on its
own grid: axes in any order and direction, 2 to 4 mm per voxel, described by sform, qform or both. A reader that ignores
the affine confuses left and right in half of them.

T1 questions are about one scan, T2 about both scans of a subject, T3 about scans of two subjects. Questions about the
modality do not name it. All answers to a question occur equally often. At the end it prints the accuracy of the most
frequent answer to each question, which needs no scan.
"""

import argparse
import gzip
import json
import math
import random
import struct
from collections import Counter, defaultdict
from dataclasses import dataclass
from multiprocessing import Pool
from pathlib import Path

import numpy

FIELD_OF_VIEW = 192.0  # mm
MODALITIES = ("T1w", "T2w")
# Brightness of head, skull, water, gray and white matter, and lesions.
BRIGHTNESS = {
    "T1w": {"scalp": 0.75, "skull": 0.1, "water": 0.15, "grey": 0.55, "white": 0.8, "lesion": 0.05},
    "T2w": {"scalp": 0.35, "skull": 0.1, "water": 0.75, "grey": 0.5, "white": 0.3, "lesion": 1.5},
}
NOISE = 0.04
RADII = {"small": (13.0, 15.0), "large": (22.0, 25.0)}  # of lesions, mm
VENTRICLES = {"small": (0.7, 0.85), "large": (1.35, 1.5)}  # lengths relative to the average
SIDES = {"left": -1, "right": 1}
# NIfTI's codes of types: number and bits of a voxel.
TYPES = {"uint8": (2, 8), "int16": (4, 16), "float32": (16, 32)}


@dataclass(frozen=True)
class Lesion:
    """A sphere; lengths in mm, towards right, front and top from the middle of the head."""

    centre: tuple
    radius: float


@dataclass(frozen=True)
class Subject:
    name: str
    scale: tuple  # of the head's axes
    tilt: tuple  # degrees around the three axes
    side: str  # of lesions: left, right, both, none
    size: str  # of lesions: small, large; none
    lesions: tuple
    in_both: bool  # lesions show in T2w, and in T1w
    ventricles: str  # small, large
    ventricles_scale: float

    def sides(self, modality):
        """Returns the sides on which lesions are visible in a modality."""
        return self.side if self.in_both or modality == "T2w" else "none"

    def count(self, modality):
        return 0 if self.sides(modality) == "none" else len(self.lesions)


def make_lesion(stream, side, size):
    while True:
        x = SIDES[side] * stream.uniform(30, 40)
        y, z = stream.uniform(-45, 45), stream.uniform(-30, 35)
        if (x / 66) ** 2 + (y / 80) ** 2 + (z / 66) ** 2 < 0.55:
            return Lesion((x, y, z), stream.uniform(*RADII[size]))


def find_subject(name, stream):
    side = stream.choice(("left", "right", "both", "none"))
    size = "none" if side == "none" else stream.choice(("small", "large"))
    where = {"none": (), "both": ("left", "right")}.get(side, (side,))
    ventricles = stream.choice(("small", "large"))
    return Subject(
        name=name,
        scale=tuple(stream.uniform(0.95, 1.05) for _ in range(3)),
        tilt=tuple(stream.uniform(-4, 4) for _ in range(3)),
        side=side,
        size=size,
        lesions=tuple(make_lesion(stream, one, size) for one in where),
        in_both=stream.random() < 0.5,
        ventricles=ventricles,
        ventricles_scale=stream.uniform(*VENTRICLES[ventricles]),
    )


# ---- Images ----------------------------------------------------------------------------------------------------------


def within(x, y, z, centre, axes):
    """Returns a value per place, below 1 inside the ellipsoid."""
    return ((x - centre[0]) / axes[0]) ** 2 + ((y - centre[1]) / axes[1]) ** 2 + ((z - centre[2]) / axes[2]) ** 2


def make_scan(subject, modality, places, noise):
    """Returns the brightness at `places`, three arrays of mm towards right, front and top; 0 outside the head."""
    look = BRIGHTNESS[modality]
    turned = numpy.tensordot(rotation(subject.tilt).astype(numpy.float32).T, places, axes=1)
    x, y, z = (along / scale for along, scale in zip(turned, subject.scale, strict=True))
    head = within(x, y, z, (0, 0, 0), (74, 90, 74))
    brain = within(x, y, z, (0, 0, 0), (66, 80, 66))
    image = numpy.select(
        [head > 1, brain > 1.12, brain > 1, brain > 0.8, brain > 0.6],
        [0, look["scalp"], look["skull"], look["water"], look["grey"]],
        look["white"],
    ).astype(numpy.float32)
    longer = subject.ventricles_scale
    for side in SIDES.values():
        ventricle = within(x, y, z, (side * 9, -2, 8), (6 * longer, 24 * longer, 10 * longer))
        image[ventricle < 1] = look["water"]
    if subject.sides(modality) != "none":
        for lesion in subject.lesions:
            image[within(x, y, z, lesion.centre, [lesion.radius] * 3) < 1] = look["lesion"]
    # A coil is nearer to some places than to others.
    strength = noise.uniform(-0.0012, 0.0012, 3)
    image *= 1 + strength[0] * x + strength[1] * y + strength[2] * z
    image += NOISE * noise.standard_normal(image.shape, dtype=numpy.float32)
    return numpy.where(head > 1, 0, image).clip(0, 2)


# ---- NIfTI files -----------------------------------------------------------------------------------------------------


def rotation(degrees):
    turned = numpy.eye(3)
    for axis, angle in enumerate(numpy.radians(degrees)):
        one = numpy.eye(3)
        first, second = (axis + 1) % 3, (axis + 2) % 3
        one[first, first] = one[second, second] = math.cos(angle)
        one[first, second], one[second, first] = -math.sin(angle), math.sin(angle)
        turned = turned @ one
    return turned


@dataclass(frozen=True)
class Grid:
    """Voxels of a file. `directions` has the file's axes as columns, which are mm towards right, front and top."""

    directions: numpy.ndarray
    spacing: tuple
    shape: tuple

    @property
    def matrix(self):
        return self.directions * numpy.array(self.spacing)

    @property
    def origin(self):
        return -self.matrix @ ((numpy.array(self.shape) - 1) / 2)

    def places(self):
        """Returns [3, *shape]: the coordinates of each voxel in mm towards right, front and top."""
        voxels = numpy.indices(self.shape, dtype=numpy.float32)
        places = numpy.tensordot(self.matrix.astype(numpy.float32), voxels, axes=1)
        return places + self.origin.astype(numpy.float32)[:, None, None, None]


def make_grid(stream):
    directions = numpy.zeros((3, 3))
    for column, axis in enumerate(stream.sample(range(3), 3)):
        directions[axis, column] = stream.choice((-1, 1))
    if stream.random() < 0.3:  # an oblique scan
        directions = rotation([stream.uniform(-5, 5) for _ in range(3)]) @ directions
    if stream.random() < 0.5:
        spacing = [stream.choice((3.0, 3.5, 4.0))] * 3
    else:
        spacing = [stream.choice((2.0, 2.5, 3.0, 3.5, 4.0)) for _ in range(3)]
    shape = tuple(max(48, round(FIELD_OF_VIEW / one)) for one in spacing)
    return Grid(directions, tuple(spacing), shape)


def quaternion(matrix):
    """Returns b, c and d of a rotation as NIfTI stores it (a is not negative), from the largest of the four."""
    trace = numpy.trace(matrix)
    squares = numpy.array([1 + trace, *(1 - trace + 2 * numpy.diag(matrix))])
    largest = int(squares.argmax())
    root = math.sqrt(squares[largest])
    differences = [matrix[2, 1] - matrix[1, 2], matrix[0, 2] - matrix[2, 0], matrix[1, 0] - matrix[0, 1]]
    if largest == 0:
        parts = [root, *(one / root for one in differences)]
    else:
        own = largest - 1
        parts = [differences[own] / root, *((matrix[own, i] + matrix[i, own]) / root for i in range(3))]
        parts[largest] = root
    sign = -1 if parts[0] < 0 else 1
    return [sign * part / 2 for part in parts[1:]]


def header(grid, voxel_type, slope, with_sform, with_qform):
    code, bits = TYPES[voxel_type]
    mirrored = numpy.linalg.det(grid.directions) < 0
    turned = grid.directions * numpy.array([1, 1, -1 if mirrored else 1])
    nifti_header = bytearray(352)
    struct.pack_into("<i", nifti_header, 0, 348)
    struct.pack_into("<8h", nifti_header, 40, 3, *grid.shape, 1, 1, 1, 1)
    struct.pack_into("<2h", nifti_header, 70, code, bits)
    struct.pack_into("<8f", nifti_header, 76, -1 if mirrored else 1, *grid.spacing, 1, 0, 0, 0)
    struct.pack_into("<3f", nifti_header, 108, 352, slope, 0)
    nifti_header[123] = 2  # mm
    struct.pack_into("<2h", nifti_header, 252, int(with_qform), int(with_sform))
    if with_qform:
        struct.pack_into("<6f", nifti_header, 256, *quaternion(turned), *grid.origin)
    if with_sform:
        affine = numpy.column_stack([grid.matrix, grid.origin])
        struct.pack_into("<12f", nifti_header, 280, *affine.flatten())
    nifti_header[344:348] = b"n+1\0"
    return bytes(nifti_header)


def write_scan(folder, name, subject, modality, stream):
    """Writes a scan and returns its path relative to `folder`."""
    grid = make_grid(stream)
    noise = numpy.random.default_rng(stream.getrandbits(64))
    image = make_scan(subject, modality, grid.places(), noise)
    voxel_type = stream.choices(("int16", "uint8", "float32"), (6, 3, 1))[0]
    slope = 0.0  # there is none
    if voxel_type == "float32":
        voxels = image * stream.uniform(100, 1000)
    elif voxel_type == "uint8":
        voxels = (image * 120).round()
    else:
        slope = stream.choice((0.0, 0.5, 0.125, 2.0))
        voxels = (image * 1000).round()
    form = stream.choice(("sform", "qform", "both"))
    content = header(grid, voxel_type, slope, form != "qform", form != "sform")
    content += voxels.astype("<" + numpy.dtype(voxel_type).str[1:]).tobytes(order="F")
    path = Path("scans") / f"{name}.nii"
    if stream.random() < 0.4:
        path = path.with_suffix(".nii.gz")
        content = gzip.compress(content, compresslevel=1, mtime=0)
    (folder / path).write_bytes(content)
    return str(path)


def make_scans(job):
    """Writes both scans of a subject; returns the subject and {modality: path}."""
    folder, name, seed = job
    stream = random.Random(f"{seed} {name}")
    subject = find_subject(name, stream)
    return subject, {one: write_scan(folder, f"{name}_{one}", subject, one, stream) for one in MODALITIES}


# ---- Questions -------------------------------------------------------------------------------------------------------

NUMBERS = ("none", "one", "two")


def compared(first, second):
    """Returns first, second or same: the larger of two values."""
    return "same" if first == second else "first" if first > second else "second"


# Each takes subjects and modalities of the scans, and returns None if the question does not apply.


def side(subjects, modalities):
    return subjects[0].sides("T2w" if "T2w" in modalities else "T1w")


def presence(subjects, modalities):
    return "no" if side(subjects, modalities) == "none" else "yes"


def size(subjects, modalities):
    return subjects[0].size if presence(subjects, modalities) == "yes" else None


def modality(_, modalities):
    return modalities[0]


def count(subjects, modalities):
    return NUMBERS[max(subjects[0].count(one) for one in modalities)]


def in_both(subjects, _):
    return None if subjects[0].side == "none" else "yes" if subjects[0].in_both else "no"


def place_of_t1w(_, modalities):
    return "first" if modalities[0] == "T1w" else "second"


def larger_lesion(subjects, modalities):
    if any(one.count(modalities[0]) == 0 for one in subjects):
        return None
    return compared(*(one.lesions[0].radius // RADII["large"][0] for one in subjects))


def more_lesions(subjects, modalities):
    return compared(*(one.count(modalities[0]) for one in subjects))


def large_ventricles(subjects, _):
    return "yes" if subjects[0].ventricles == "large" else "no"


def larger_ventricles(subjects, _):
    larger = compared(*(one.ventricles == "large" for one in subjects))
    return None if larger == "same" else larger


@dataclass(frozen=True)
class Question:
    text: str
    answer: callable
    answers: tuple
    names_modalities: bool = True


QUESTIONS = {
    "T1": (
        Question("On which side is the lesion?", side, ("left", "right", "both", "none")),
        Question("Is there a lesion?", presence, ("yes", "no")),
        Question("Is the lesion small or large?", size, ("small", "large")),
        Question("Are the ventricles large?", large_ventricles, ("yes", "no")),
        Question("Which modality is this scan?", modality, MODALITIES, names_modalities=False),
    ),
    "T2": (
        Question("On which side is the lesion?", side, ("left", "right", "both", "none")),
        Question("How many lesions are there?", count, NUMBERS),
        Question("Is the lesion in both scans?", in_both, ("yes", "no")),
        Question("Which scan is T1w?", place_of_t1w, ("first", "second"), names_modalities=False),
    ),
    "T3": (
        Question("Which has the larger lesion?", larger_lesion, ("first", "second", "same")),
        Question("Which has more lesions?", more_lesions, ("first", "second", "same")),
        Question("Which has the larger ventricles?", larger_ventricles, ("first", "second")),
    ),
}


def find_modalities(task, question, answer, turn):
    """Returns modalities of the scans, balanced over the answers; for a question about them, those that the answer requires."""
    number = turn // len(question.answers) % 2
    if not question.names_modalities:
        number = question.answers.index(answer)
    if task == "T2":
        return MODALITIES[number], MODALITIES[1 - number]
    return (MODALITIES[number],) * (2 if task == "T3" else 1)


def make_record(task, question, answer, modalities, scans, stream):
    """Returns subjects for whom the answer to the question is `answer`."""
    for _ in range(10000):
        subjects = stream.sample(scans, 2 if task == "T3" else 1)
        if question.answer([one for one, _ in subjects], modalities) == answer:
            return subjects
    raise SystemExit(f'of {len(scans)} subjects none has the answer "{answer}" to "{question.text}": draw more')


def make_turns(task, question, subjects, modalities, with_others, stream):
    """Returns the messages of a conversation: the question and its answer, in training among the task's others in random order."""
    questions = [question]
    if with_others:
        questions = [one for one in QUESTIONS[task] if one == question or one.names_modalities]
        stream.shuffle(questions)
    pairs = [(one.text, one.answer(subjects, modalities)) for one in questions]
    pairs = [(text, answer) for text, answer in pairs if answer is not None]
    marks = "<image>\n" * len(modalities)
    return [
        {"from": whose, "value": value}
        for number, (text, answer) in enumerate(pairs)
        for whose, value in (("human", text if number else marks + text), ("gpt", answer))
    ]


def make_records(task, count, scans, with_others, stream):
    """Returns records balanced over the questions, their answers, and the modalities."""
    records, known = [], set()
    for number in range(count):
        question = QUESTIONS[task][number % len(QUESTIONS[task])]
        turn = number // len(QUESTIONS[task])
        answer = question.answers[turn % len(question.answers)]
        modalities = find_modalities(task, question, answer, turn)
        for _ in range(1000):  # until it is a new one
            selection = make_record(task, question, answer, modalities, scans, stream)
            paths = [selection[i % len(selection)][1][one] for i, one in enumerate(modalities)]
            if (key := (question.text, *paths)) not in known:
                break
        known.add(key)
        record = {
            "id": f"{task}_{number:05d}",
            "volumes": paths,
            "modality": list(modalities),
            "subject_id": [one.name for one, _ in selection],
            "task_type": task,
            "conversations": make_turns(task, question, [one for one, _ in selection], modalities, with_others, stream),
        }
        if not question.names_modalities:
            del record["modality"]
        records.append(record)
    stream.shuffle(records)
    return records


def blind_accuracy(records):
    """Returns for each task the accuracy of always giving the most frequent answer to a question."""
    answers = defaultdict(Counter)
    for record in records:
        question, answer = (turn["value"] for turn in record["conversations"][:2])
        answers[record["task_type"], question, *record.get("modality", ())][answer] += 1
    right, all_of_them = Counter(), Counter()
    for (task, *_), counts in answers.items():
        right[task] += counts.most_common(1)[0][1]
        all_of_them[task] += counts.total()
    return {task: right[task] / all_of_them[task] for task in sorted(all_of_them)}


def sentences():
    """Yields the texts of all questions and answers."""
    for questions in QUESTIONS.values():
        for question in questions:
            yield question.text
            yield from question.answers


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--subjects", type=int, default=600, help="number of training subjects, with two scans each")
    parser.add_argument("--held-out", type=int, default=80, help="number of subjects that occur only in held_out.json")
    parser.add_argument("--records", type=int, default=2400, help="questions of each task in training")
    parser.add_argument("--held-out-records", type=int, default=144, help="of each task in held_out.json")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    (arguments.out / "scans").mkdir(parents=True, exist_ok=True)
    parts = (
        ("train", arguments.subjects, arguments.records),
        ("held_out", arguments.held_out, arguments.held_out_records),
    )
    for part, subjects, count in parts:
        with Pool() as pool:
            jobs = [(arguments.out, f"{part}_{number:05d}", arguments.seed) for number in range(subjects)]
            scans = pool.map(make_scans, jobs, chunksize=8)
        stream = random.Random(f"{arguments.seed} {part}")
        records = [one for task in QUESTIONS for one in make_records(task, count, scans, part == "train", stream)]
        (arguments.out / f"{part}.json").write_text(json.dumps(records))
        blind = blind_accuracy(records)
        mean = sum(blind.values()) / len(blind)
        by_task = ", ".join(f"{task} {share:.0%}" for task, share in blind.items())
        print(f"{part}: {subjects} subjects, {len(records)} questions; without the scans the best guess is right in "
              f"{mean:.0%} ({by_task})")


if __name__ == "__main__":
    main()
