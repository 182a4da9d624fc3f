"""Prints where a training step's time goes, by part of the model: kernels by name and grid, matrix products by size.

    VLMTRAIN_VGPU_TRACE=record.txt vlmtrain --config train.yaml --device virtual:h200
    CUDA_INJECTION64_PATH=…/libvlmtrain_kernel_times.so VLMTRAIN_KERNEL_TIMES=times.txt vlmtrain --config train.yaml
    python bench/step_parts.py times.txt --record record.txt --config CHECKPOINT/config.json --rank 16 --images 16

The GPU's recording (bench/kernel_times.cpp) has the times, names and grids of kernels. A product's name and grid do not give
its size: cuBLAS starts as many blocks as the GPU has multiprocessors. The virtual GPU's record (docs/explanation/virtual-gpu.md) of the
same run has the sizes, in the same order. All other kernels have the same names and grids in both and align the two. The
products between two of them are matched one by one if their numbers are equal, and by name and grid otherwise.
"""

import argparse
import difflib
import json
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

import kernel_times

BASE, LORA, NARROW_BASE, NARROW_LORA = ("base products, aligned", "LoRA's products, aligned", "base products with misaligned rows",
                                        "LoRA's products with misaligned rows")
TEXT_ATTENTION, FULL_ATTENTION, WINDOWS, OTHER_ATTENTION = ("attention of the text", "attention, full blocks of the tower",
                                                            "attention, windows of the tower", "attention, not separated")
TOWER_GATE, TEXT_GATE, NORMS, ROPE, DEQUANTIZATION = "SwiGLU of the tower", "SwiGLU of the text", "norms", "RoPE", "dequantization"
LOSS, UPDATE, OWN, ATEN = "cross-entropy", "optimizer", "other custom kernels", "ATen's operations"
UNKNOWN_PRODUCTS = "products, not separated"
# The parts that the virtual GPU's record separates.
PRODUCTS = (BASE, LORA, NARROW_BASE, NARROW_LORA, UNKNOWN_PRODUCTS)
# Custom kernels by a part of their names, mangled or not.
CUSTOM = {"Norm": NORMS, "rope": ROPE, "nf4": DEQUANTIZATION, "int8": DEQUANTIZATION, "ross_entropy": LOSS, "adamw": UPDATE}
# Maximum number of LoRA factors stacked into one product: those of queries, keys and values.
STACKED = 3
ALIGNMENT_BYTES = 16  # which the fast kernels read at once
ROW_ALIGNMENT = 8  # elements of 16 bits in 16 bytes


class Launch(NamedTuple):
    name: str  # mangled or not
    grid: tuple
    nanoseconds: int = 0


class Product(NamedTuple):
    """out [n, m] = in [n, k] · weight, in cuBLAS's order of sizes."""

    m: int
    n: int
    k: int
    batch: int = 1
    alignment: int | None = None  # bytes; None in records of old builds

    def flops(self):
        return 2 * self.m * self.n * self.k * self.batch


class Shapes(NamedTuple):
    """The sizes that distinguish the parts of a model."""

    rank: int
    text_head: int
    vision_head: int
    patch_elements: int
    images: int  # per micro-batch

    @classmethod
    def of(cls, config, rank, images):
        """Returns the sizes of a Qwen2.5-VL from its config.json."""
        text, vision = config.get("text_config", config), config["vision_config"]
        channels = vision.get("in_channels", vision.get("in_chans", 3))
        patch = channels * vision.get("temporal_patch_size", 2) * vision.get("patch_size", 14) ** 2
        return cls(rank, text["hidden_size"] // text["num_attention_heads"], vision["hidden_size"] // vision["num_heads"], patch, images)


def is_product(name):
    return "nvjet" in name or kernel_times.classify(name) in ("products, aligned", "products, misaligned", "other products")


def is_reduction_of_product(name):
    """Returns whether a kernel only adds the parts of a product whose inner size was split."""
    return "splitKreduce" in name


def read_record(path):
    """Returns the launches and products of the last step of a virtual GPU's record, in order."""
    items = []
    for line in path.read_text().splitlines():
        words = line.split()
        if words[:1] == ["launch"]:
            items.append(Launch(words[4], tuple(map(int, words[1].split(",")))))
        elif words[:1] == ["product"]:
            items.append(Product(*map(int, words[1:5] + words[7:8])))
    places = kernel_times.find_last_step([item.name if isinstance(item, Launch) else "" for item in items])
    if places is None:
        raise SystemExit(f"step_parts: {path} has fewer than two optimizer updates; train for some steps")
    return items[places[0] : places[1] + 1]


def read_times(path):
    """Returns the launches of the last step of a GPU's recording, and the nanoseconds of that step."""
    names, kernels = kernel_times.read(path)
    step, wall = kernel_times.last_step(names, kernels)
    return [Launch(names[kernel.number], kernel.grid, kernel.end - kernel.start) for kernel in step], wall


def sections(items, is_anchor):
    """Returns the anchors of a sequence, and the items before each of them and after the last one."""
    anchors, between = [], [[]]
    for item in items:
        if is_anchor(item):
            anchors.append(item)
            between.append([])
        else:
            between[-1].append(item)
    return anchors, between


def anchor_key(launch, known):
    """Returns name and grid, the name as c++filt spells it in both sequences."""
    return known.get(launch.name, launch.name), launch.grid


def match_products(launches, record):
    """Returns the size of each launch of a GPU's step; None if the record has no matching product. A reduction has the size
    of its product."""
    mangled = list({item.name for item in record if isinstance(item, Launch)})
    known = dict(zip(mangled, kernel_times.demangle(mangled)))
    places = list(range(len(launches)))
    anchors, between = sections(places, lambda place: not is_product(launches[place].name))
    recorded, products = sections(record, lambda item: isinstance(item, Launch))
    a = [anchor_key(launches[place], known) for place in anchors]
    b = [anchor_key(launch, known) for launch in recorded]
    counterpart = {-1: -1, len(a): len(b)}
    for block in difflib.SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks():
        counterpart.update({block.a + i: block.b + i for i in range(block.size)})
    sizes = [None] * len(launches)
    for section, mine in enumerate(between):
        before, after = counterpart.get(section - 1), counterpart.get(section)
        if before is None or after != before + 1:
            continue
        products_here = [place for place in mine if not is_reduction_of_product(launches[place].name)]
        if len(products_here) == len(products[before + 1]):
            for place, size in zip(products_here, products[before + 1]):
                sizes[place] = size
    for place, launch in enumerate(launches):
        if place and is_reduction_of_product(launch.name):
            sizes[place] = sizes[place - 1]
    return sizes


def is_aligned(name, size):
    """Returns whether a product's kernel reads 16 bytes at once, by its name, else by the alignment of its matrices."""
    if "nvjet" in name or "align8" in name:
        return True
    if re.search(r"align[1-7](?!\d)", name):
        return False
    if size is None:
        return True
    if size.alignment is not None:
        return size.alignment == ALIGNMENT_BYTES
    return size.m % ROW_ALIGNMENT == size.k % ROW_ALIGNMENT == 0


def part_of_product(name, size, shapes):
    if size is None:
        return UNKNOWN_PRODUCTS
    is_lora = min(size.m, size.n, size.k) <= STACKED * shapes.rank
    return (LORA if is_lora else BASE) if is_aligned(name, size) else (NARROW_LORA if is_lora else NARROW_BASE)


def round_up(value, multiple):
    return -(-value // multiple) * multiple


def part_of_attention(name, grid, shapes):
    """Separates attention by the kernel's head size, and by the number of segments, the grid's second size."""
    head = re.search(r"kernel_traits(?:<|ILi)(\d+)", name)
    heads = {"text": round_up(shapes.text_head, 32), "tower": round_up(shapes.vision_head, 32)}
    if len(grid) < 2:
        return OTHER_ATTENTION
    if heads["text"] != heads["tower"] and head:
        if int(head.group(1)) == heads["text"]:
            return TEXT_ATTENTION
    elif grid[1] < shapes.images:
        return TEXT_ATTENTION
    return FULL_ATTENTION if grid[1] <= shapes.images else WINDOWS


def part_of_custom(name, grid, patch_rows):
    if "gated_activation_" in name:
        # Rows are patches in the tower. Without a record: in old builds, only its width has packs of 8 bytes.
        is_tower = grid[0] in patch_rows if patch_rows and grid else re.search(r"(?:, |Li)4[E>]", name) is not None
        return TOWER_GATE if is_tower else TEXT_GATE
    return next((part for word, part in CUSTOM.items() if word in name), OWN)


def find_part(launch, size, shapes, patch_rows=()):
    if is_product(launch.name):
        return part_of_product(launch.name, size, shapes)
    kind = kernel_times.classify(launch.name)
    if kind == "attention":
        return part_of_attention(launch.name, launch.grid, shapes)
    if "vlmtrain" in launch.name:
        return part_of_custom(launch.name, launch.grid, patch_rows)
    return UPDATE if any(word in launch.name.lower() for word in kernel_times.UPDATES) else ATEN


def separate(launches, record, shapes):
    """Returns the part and the size of each launch. Products without a match get the most frequent part of their name and
    grid."""
    sizes = match_products(launches, record) if record else [None] * len(launches)
    patch_rows = {item.n for item in record or () if isinstance(item, Product) and item.k == shapes.patch_elements}
    parts = [find_part(launch, size, shapes, patch_rows) for launch, size in zip(launches, sizes)]
    votes = defaultdict(Counter)
    for launch, part in zip(launches, parts):
        if part in PRODUCTS and part != UNKNOWN_PRODUCTS:
            votes[launch.name, launch.grid][part] += 1
    for place, launch in enumerate(launches):
        if parts[place] == UNKNOWN_PRODUCTS and (counts := votes.get((launch.name, launch.grid))):
            parts[place] = counts.most_common(1)[0][0]
    return list(zip(parts, sizes))


def rate(flops, ms):
    """Returns TFLOP/s; None if the time is zero or nothing is a product."""
    return flops / ms / 1e9 if ms and flops else None


def summarize(launches, record, shapes):
    """Returns the milliseconds and launches of each part, those of each size of product, and how many products were matched."""
    parts, sizes = defaultdict(lambda: [0, 0.0, 0]), defaultdict(lambda: [0, 0.0])
    matched = products = 0
    for launch, (part, size) in zip(launches, separate(launches, record, shapes)):
        is_main = is_product(launch.name) and not is_reduction_of_product(launch.name)
        products += is_main
        matched += is_main and size is not None
        parts[part][0] += 1
        parts[part][1] += launch.nanoseconds / 1e6
        if size is not None:
            parts[part][2] += size.flops() if is_main else 0
            sizes[size][0] += is_main
            sizes[size][1] += launch.nanoseconds / 1e6
    return {"parts": {part: {"launches": count, "ms": ms, "tflops": rate(flops, ms)}
                      for part, (count, ms, flops) in sorted(parts.items(), key=lambda item: -item[1][1])},
            "products": [{"m": size.m, "n": size.n, "k": size.k, "launches": count, "ms": ms, "tflops": rate(count * size.flops(), ms)}
                         for size, (count, ms) in sorted(sizes.items(), key=lambda item: -item[1][1])],
            "products_matched": matched, "products_launched": products}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("times", type=Path)
    parser.add_argument("--record", type=Path, help="record of the virtual GPU; without it products are not separated")
    parser.add_argument("--config", type=Path, required=True, help="config.json of the checkpoint")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--images", type=int, default=16, help="of a micro-batch")
    parser.add_argument("--sizes", type=int, default=20, help="number of product sizes to print")
    arguments = parser.parse_args()
    launches, wall = read_times(arguments.times)
    shapes = Shapes.of(json.loads(arguments.config.read_text()), arguments.rank, arguments.images)
    summary = summarize(launches, read_record(arguments.record) if arguments.record else None, shapes)
    print(f"A step of {wall / 1e6:.1f} ms: {len(launches):,} kernels; "
          f"{summary['products_matched']:,} of {summary['products_launched']:,} products by size.")
    print("\n| part | launches | ms | TFLOP/s |\n|---|---|---|---|")
    for part, line in summary["parts"].items():
        print(f"| {part} | {line['launches']:,} | {line['ms']:.1f} | {'' if line['tflops'] is None else format(line['tflops'], '.0f')} |")
    print("\n| product m × n × k | launches | ms | TFLOP/s |\n|---|---|---|---|")
    for line in summary["products"][: arguments.sizes]:
        print(f"| {line['m']} × {line['n']} × {line['k']} | {line['launches']:,} | {line['ms']:.1f} | {line['tflops'] or 0:.0f} |")


if __name__ == "__main__":
    main()
