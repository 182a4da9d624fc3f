"""Videos, volumes and masks for the checks, made with Python's standard library only. The bytes are reproducible."""

import array
import gzip
import json
import math
import random
import struct
import sys

from harness import inputs

FRAME_SIZES = [(96, 64), (64, 80), (72, 72)]
FRAMES = [4, 6, 3]
SCAN_SIZES = [(14, 18, 16), (12, 12, 10), (20, 16, 18)]
MODALITIES = ["T1w", "T2w", "T1w"]
FLOAT32, INT16 = 16, 4
IMAGE_SIDE = 96
STRUCTURES = {"kidney": (30, 34, 18, 11), "liver": (66, 62, 20, 16)}  # center and half axes in pixels


def conversation(marks, question, answer):
    return [{"from": "human", "value": marks + question}, {"from": "gpt", "value": answer}]


def write_records(folder, records):
    (folder / "train.json").write_text(json.dumps(records))
    return folder / "train.json"


def write_video_data(folder):
    """Writes eight samples with folders of frames: one or two videos, a video with an image, text only. Returns the path of
    train.json."""
    for number, (size, frames) in enumerate(zip(FRAME_SIZES, FRAMES)):
        (folder / f"clip-{number}").mkdir(parents=True, exist_ok=True)
        for frame in range(frames):
            inputs.write_waves(folder / f"clip-{number}" / f"frame-{frame}.png", *size, 10 * number + frame)
    inputs.write_waves(folder / "still.png", 80, 60, 5)
    records = []
    for i, clips in enumerate([[0], [1], [2, 0], [], [2], [1], [0, 1], [2]]):
        images = ["still.png"] if i == 5 else []
        records.append({"id": f"video-{i}", "videos": [f"clip-{number}" for number in clips], "images": images, "fps": 2,
                        "conversations": conversation("<video>\n" * len(clips) + "<image>\n" * len(images), inputs.text(i, 5) + "?",
                                                      inputs.text(50 + i, 4 + 3 * (i % 3)))})
    return write_records(folder, records)


def write_nifti(path, size, values, datatype):
    """Writes a NIfTI-1 file of voxels of 1.5 mm, compressed if its name ends with .gz. `values`: floats, the first axis fastest."""
    code = {FLOAT32: "f", INT16: "h"}[datatype]
    voxels = array.array(code, values if datatype == FLOAT32 else (round(value) for value in values))
    if sys.byteorder == "big":
        voxels.byteswap()
    header = bytearray(352)
    struct.pack_into("<i", header, 0, 348)
    struct.pack_into("<8h", header, 40, 3, *size, 1, 1, 1, 1)
    struct.pack_into("<hh", header, 70, datatype, 8 * voxels.itemsize)
    struct.pack_into("<8f", header, 76, 1, 1.5, 1.5, 1.5, 0, 0, 0, 0)
    struct.pack_into("<f", header, 108, 352)  # where the voxels begin
    struct.pack_into("<hh", header, 252, 0, 1)  # the affine is in the sform
    for row in range(3):
        struct.pack_into("<4f", header, 280 + 16 * row, *(1.5 if column == row else 0 for column in range(4)))
    header[344:348] = b"n+1\0"
    data = bytes(header) + voxels.tobytes()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def head(size, number):
    """Yields the voxels of a textured ellipsoid on a zero background, brighter on one side."""
    source = random.Random(number)
    for z in range(size[2]):
        for y in range(size[1]):
            for x in range(size[0]):
                right, front, top = (2 * (place + 0.5) / length - 1 for place, length in zip((x, y, z), size))
                noise = source.uniform(-4, 4)
                inside = right * right + front * front + top * top < 0.9
                yield 100 + 10 * number + 30 * (front if number % 2 else right) + noise if inside else 0.0


def write_volume_data(folder):
    """Writes eight samples of scans, one with two scans, one of text only. Returns the path of train.json."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ["scan-0.nii.gz", "scan-1.nii", "scan-2.nii.gz"]
    for number, (name, size) in enumerate(zip(names, SCAN_SIZES)):
        write_nifti(folder / name, size, head(size, number), INT16 if number == 1 else FLOAT32)
    records = []
    for i, scans in enumerate([[0], [1], [0, 1], [2], [], [1], [2], [0]]):
        record = {"id": f"scan-{i}", "volumes": [names[number] for number in scans],
                  "conversations": conversation("<image>\n" * len(scans), "Where is it brightest?", inputs.text(i, 3 + i % 4))}
        if i % 3 == 0 and scans:
            record["modality"] = [MODALITIES[number] for number in scans]
        records.append(record)
    return write_records(folder, records)


def is_inside(structure, x, y):
    middle_x, middle_y, half_width, half_height = STRUCTURES[structure]
    return ((x + 0.5 - middle_x) / half_width) ** 2 + ((y + 0.5 - middle_y) / half_height) ** 2 <= 1


def write_ellipses(path, seed):
    """Draws two structures in noise."""
    source, pixels = random.Random(seed), bytearray()
    for y in range(IMAGE_SIDE):
        for x in range(IMAGE_SIDE):
            level = 200 if is_inside("kidney", x, y) else 150 if is_inside("liver", x, y) else 70 + 20 * math.sin(0.1 * (x + seed))
            gray = min(255, max(0, int(level + source.uniform(-25, 25))))
            pixels += bytes((gray, gray, max(0, gray - 10)))
    inputs.write_png(path, IMAGE_SIDE, IMAGE_SIDE, bytes(pixels))


def write_mask(path, structure):
    pixels = b"".join(b"\xff\xff\xff" if is_inside(structure, x, y) else b"\0\0\0" for y in range(IMAGE_SIDE) for x in range(IMAGE_SIDE))
    inputs.write_png(path, IMAGE_SIDE, IMAGE_SIDE, pixels)


def run_lengths(structure):
    """Returns COCO's run lengths, column by column, starting with zeros."""
    counts, value = [0], False
    for x in range(IMAGE_SIDE):
        for y in range(IMAGE_SIDE):
            if is_inside(structure, x, y) != value:
                counts.append(0)
                value = not value
            counts[-1] += 1
    return {"size": [IMAGE_SIDE, IMAGE_SIDE], "counts": counts}


def write_mask_data(folder):
    """Writes eight samples with up to two masks, as files and as run lengths. Returns the path of train.json."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed in range(3):
        write_ellipses(folder / f"organs-{seed}.png", seed)
    for structure in STRUCTURES:
        write_mask(folder / f"{structure}.png", structure)
    records = []
    shown = [["kidney"], ["liver"], ["kidney", "liver"], [], ["liver"], ["kidney"], ["liver", "kidney"], ["kidney"]]
    for i, structures in enumerate(shown):
        masks = [{"structure": name, **({"path": f"{name}.png"} if (i + number) % 2 else run_lengths(name))}
                 for number, name in enumerate(structures)]
        record = {"id": f"organs-{i}", "image": f"organs-{i % 3}.png", "task": "many" if len(masks) > 1 else "one",
                  "conversations": conversation("<image>\n", f"Segment the {' and the '.join(structures) or 'bone'}.",
                                                " and ".join(f"{name} <SEG>" for name in structures) or "none")}
        records.append(record | ({"masks": masks} if masks else {}))
    return write_records(folder, records)
