#!/usr/bin/env python3
"""Draws ten images of colored shapes and writes records about them: images/*.png and train.json in the current folder.
For docs/getting-started/first-fine-tune.md. Needs Pillow (Debian: python3-pil).
"""
import json
from pathlib import Path

from PIL import Image, ImageDraw

COLORS = {"red": (200, 30, 30), "green": (30, 160, 60), "blue": (30, 60, 200), "yellow": (230, 200, 40), "black": (20, 20, 20)}
SIZE, BOX = (320, 240), (90, 50, 230, 190)


def draw(form: str, color: str, path: str) -> None:
    image = Image.new("RGB", SIZE, "white")
    canvas = ImageDraw.Draw(image)
    (canvas.ellipse if form == "circle" else canvas.rectangle)(BOX, fill=COLORS[color])
    image.save(path)


Path("images").mkdir(exist_ok=True)
records = []
for form in ("circle", "square"):
    for color in COLORS:
        path = f"images/{color}-{form}.png"
        draw(form, color, path)
        records.append({"id": f"{color}-{form}", "image": path, "conversations": [
            {"from": "human", "value": "<image>\nWhat is shown?"}, {"from": "gpt", "value": f"A {color} {form}."}]})
Path("train.json").write_text(json.dumps(records, indent=2))
