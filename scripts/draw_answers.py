#!/usr/bin/env python3
"""Draws some held-out images with the question, the reference answer, and the model's answers before and after training.

    draw_answers.py QUICKSTART_DIR      reads the files of scripts/quickstart.sh, writes QUICKSTART_DIR/answers.png
"""
import json
import pathlib
import sys

from PIL import Image, ImageDraw, ImageFont

COLUMNS, ROWS = 4, 3
CELL_WIDTH, CELL_HEIGHT, IMAGE = 330, 210, 128
INK, RIGHT, WRONG, PAPER = "#1b1f24", "#1a7f37", "#cf222e", "#ffffff"


def answers(path: pathlib.Path) -> dict[str, str]:
    return {line["id"]: line["answer"] for line in map(json.loads, path.read_text().splitlines())}


def font(size: int) -> ImageFont.ImageFont:
    try:
        return ImageFont.truetype("DejaVuSans.ttf", size)
    except OSError:
        return ImageFont.load_default()


def clipped(pen: ImageDraw.ImageDraw, text: str, letters: ImageFont.ImageFont, width: int) -> str:
    """Returns the text, truncated to `width` pixels."""
    if pen.textlength(text, font=letters) <= width:
        return text
    while text and pen.textlength(text + "…", font=letters) > width:
        text = text[:-1]
    return text + "…"


def spread(records: list[dict], count: int) -> list[dict]:
    """Returns `count` records, alternating between the tasks."""
    by_task: dict[str, list[dict]] = {}
    for record in records:
        by_task.setdefault(record["task"], []).append(record)
    selected = []
    while len(selected) < min(count, len(records)):
        for queue in by_task.values():
            if queue and len(selected) < count:
                selected.append(queue.pop(0))
    return selected


def draw(root: pathlib.Path) -> pathlib.Path:
    records = json.loads((root / "data" / "held_out.json").read_text())
    before, after = answers(root / "answers_before.jsonl"), answers(root / "answers_after.jsonl")
    sheet = Image.new("RGB", (COLUMNS * CELL_WIDTH, ROWS * CELL_HEIGHT), PAPER)
    pen = ImageDraw.Draw(sheet)
    for number, record in enumerate(spread(records, COLUMNS * ROWS)):
        left, top = number % COLUMNS * CELL_WIDTH + 16, number // COLUMNS * CELL_HEIGHT + 16
        image = Image.open(root / "data" / record["image"]).resize((IMAGE, IMAGE), Image.BICUBIC)
        sheet.paste(image, (left, top))
        question, expected = (turn["value"].replace("<image>", "").strip() for turn in record["conversations"][:2])
        pen.text((left, top + IMAGE + 10), clipped(pen, question, font(13), CELL_WIDTH - 32), fill=INK, font=font(13))
        lines = [("right answer", expected, INK)]
        for name, answer in (("before", before[record["id"]]), ("after", after[record["id"]])):
            lines.append((name, answer or "(nothing)", RIGHT if answer == expected else WRONG))
        next_to = CELL_WIDTH - IMAGE - 46
        for row, (name, text, colour) in enumerate(lines):
            pen.text((left + IMAGE + 14, top + 42 * row), name, fill="#6e7781", font=font(11))
            pen.text((left + IMAGE + 14, top + 42 * row + 15), clipped(pen, text, font(14), next_to), fill=colour, font=font(14))
    path = root / "answers.png"
    sheet.save(path)
    return path


if __name__ == "__main__":
    print(draw(pathlib.Path(sys.argv[1])))
