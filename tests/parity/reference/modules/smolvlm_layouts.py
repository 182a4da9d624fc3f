"""parity/data/vision_positions.json, and models/data/smolvlm_videos.json: frames that transformers takes, its words for numbers."""

import torch
from num2words import num2words

from library.cases import write_json, write_tables
from library.smolvlm_video_format import frames

# Frames, frames per second, requested frames per second, maximum frames.
VIDEOS = [
    (300, 30, 1, 64), (3000, 30, 1, 64), (3000, 29.97, 1, 64), (100000, 25, 1, 64), (10, 2, 1, 2), (5, 2, 1, 2), (1, 25, 1, 64),
    (7, 25, 1, 64), (2500, 24, 0.5, 10), (75, 30, 1, 64), (105, 30, 1, 64), (9000, 60, 1, 128), (108000, 30, 1, 8), (90, 30, 1, 1),
]
NUMBERS = [*range(1, 131), 199, 200, 201, 210, 345, 500, 512, 768, 900, 999]


def vision_positions():
    """Which row of the position table each patch of a full tile takes along one side; see data/README.md."""
    table = {}
    for side in (4, 6, 14, 16, 19, 24, 25, 26, 27, 32, 64):
        boundaries = torch.arange(1 / side, 1.0, 1 / side)
        fractions = torch.arange(side, dtype=torch.float32) * (1.0 / torch.tensor([side]))
        fractions = torch.clamp(fractions, max=1.0 - 1e-6)
        table[side] = torch.bucketize(fractions, boundaries, right=True).tolist()
    return table


def make(tests):
    write_json(tests / "parity" / "data" / "vision_positions.json", vision_positions(), indent=None)
    write_tables(tests / "models" / "data" / "smolvlm_videos.json", {
        "frames": [{"video": list(video), "indices": frames(*video)} for video in VIDEOS],
        "numbers": [[number, num2words(number)] for number in NUMBERS],
    })
