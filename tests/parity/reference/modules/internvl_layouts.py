"""models/data/internvl.json: which grids of tiles transformers cuts images into, and which frames it takes of videos."""

import random

from transformers.models.got_ocr2.image_processing_got_ocr2 import get_optimal_tiled_canvas
from transformers.models.internvl.video_processing_internvl import InternVLVideoProcessor
from transformers.video_utils import VideoMetadata

from library.cases import write_tables

# Equal ratios, those between two grids, those beyond all, and sizes around half of a grid's pixels: (height, width).
SIZES = [
    (448, 448), (100, 100), (640, 640), (2000, 2000), (768, 1024), (1024, 768), (1080, 1920), (300, 1200), (1200, 300), (10, 4000),
    (4000, 10), (1, 1), (633, 634), (634, 634), (448, 896), (449, 898), (896, 448), (500, 750), (750, 500), (1500, 1000), (447, 1341),
]
TILES = [(1, 12), (1, 1), (2, 6), (1, 6), (12, 12), (3, 40)]
# Frames, frames per second, requested frames per second or number; whether from the middles.
VIDEOS = [
    (300, 30, 2, None, True), (300, 29.97, 2, None, True), (64, 25, 0.5, None, True), (10, 2, 2, None, True), (101, 24, 1, None, False),
    (300, 30, None, 8, True), (317, 30, None, 32, True), (99, 30, None, 7, False), (5, 1, None, 5, True), (100000, 60, None, 64, True),
]


def frames(total, fps, expected, count, from_middles):
    processor = InternVLVideoProcessor(initial_shift=from_middles)
    indices = processor.sample_frames(VideoMetadata(total_num_frames=total, fps=fps), fps=expected, num_frames=count)
    return {"video": [total, fps, expected, count, from_middles], "indices": indices.tolist()}


def make(tests):
    random.seed(0)
    sizes = SIZES + [(random.randint(1, 3000), random.randint(1, 3000)) for _ in range(60)]
    write_tables(tests / "models" / "data" / "internvl.json", {
        # height, width, least and most tiles, columns and rows
        "grids": [[*size, *tiles, *get_optimal_tiled_canvas(size, (448, 448), *tiles)] for tiles in TILES for size in sizes],
        "frames": [frames(*video) for video in VIDEOS],
    })
