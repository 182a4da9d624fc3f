"""Small images with smooth areas, edges and noise: resizing and JPEG both leave traces in them."""

import numpy as np
from PIL import Image, ImageDraw


def draw(width, height, seed, mode="RGB"):
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    channels = []
    for _ in range(3):
        fx, fy, phase = rng.uniform(0.02, 0.2), rng.uniform(0.02, 0.2), rng.uniform(0, 2 * np.pi)
        channels.append(127 + 80 * np.sin(fx * x + fy * y + phase) + rng.normal(0, 6, (height, width)))
    image = Image.fromarray(np.clip(np.stack(channels, axis=-1), 0, 255).astype(np.uint8))

    painter = ImageDraw.Draw(image)
    for shape in (painter.rectangle, painter.ellipse):
        left, top = rng.uniform(0, 0.6) * width, rng.uniform(0, 0.6) * height
        box = [left, top, left + rng.uniform(0.15, 0.4) * width, top + rng.uniform(0.15, 0.4) * height]
        shape(box, fill=tuple(int(v) for v in rng.integers(0, 256, 3)))
    return image.convert(mode)


def save(image, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".jpg":
        image.save(path, quality=90)
    else:
        image.save(path)
