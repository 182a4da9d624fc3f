"""models/data/qwen3_vl.json: what transformers computes of sizes alone for Qwen3-VL.

    taps    [frames, rows, columns] of grids, side of the table, merge: entries and weights of each patch, [patches, 4]
    sizes   [frames, height, width, least, most, capped tokens of a frame or null, height after, width after]
    frames  [frames, fps, wanted fps, least, most]: which frames are taken, and the time stamps between them
"""

import random
from unittest import mock

import numpy as np
import torch
from transformers.image_utils import SizeDict
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
from transformers.video_processing_utils import BaseVideoProcessor
from transformers.video_utils import VideoMetadata
from transformers.vision_utils import get_vision_interpolation_indices_and_weights

from library.cases import write_tables
from modules.qwen_layouts import VIDEOS

TAPS = [([[1, 2, 2]], 6, 2), ([[2, 4, 6], [1, 8, 2]], 48, 2), ([[1, 10, 14]], 7, 2), ([[1, 3, 1], [1, 1, 5]], 4, 1)]
SIZES = [
    (4, 480, 640), (2, 1080, 1920), (16, 28, 28), (7, 10, 42), (5, 70, 31), (768, 1080, 1920), (3, 56, 6400), (33, 240, 320), (2, 5, 500),
    (9, 1, 1),
]
BUDGETS = [(4096, 25165824, None), (128 * 32 * 32, 32 * 32 * 768, None), (4096, 25165824, 768), (65536, 600000, 16)]


def taps(grids, side, merge):
    entries, weights = get_vision_interpolation_indices_and_weights(
        torch.tensor(grids), side, align_corners=True, spatial_merge_size=merge
    )
    return {"grids": grids, "side": side, "merge": merge, "entries": entries.tolist(), "weights": weights.tolist()}


def size(frames, height, width, least, most, capped):
    """As Qwen3VLVideoProcessor.resize asks for it, of frames that are not there."""
    processor = Qwen3VLVideoProcessor(cap_pixels_per_frame=capped is not None, max_video_tokens=capped or 768)
    video = torch.empty(1, frames, 3, height, width, dtype=torch.uint8, device="meta")
    with mock.patch.object(BaseVideoProcessor, "resize", lambda self, image, size, resample: (size.height, size.width)):
        try:
            resized = processor.resize(video, SizeDict(shortest_edge=least, longest_edge=most), None, 32, 2, capped is not None)
        except ValueError:
            resized = (None, None)
    return [frames, height, width, least, most, capped, *resized]


def frames(count, fps, num_frames, least, most):
    processor = Qwen3VLVideoProcessor(min_frames=least, max_frames=most)
    indices = processor.sample_frames(VideoMetadata(total_num_frames=count, fps=fps), fps=num_frames)
    stamps = Qwen3VLProcessor._calculate_timestamps(None, np.array(indices), fps, 2)
    return {
        "video": [count, fps, num_frames, least, most], "indices": indices.tolist(), "stamps": [f"<{time:.1f} seconds>" for time in stamps],
    }


def make(tests):
    random.seed(0)
    sizes = SIZES + [(random.randint(2, 64), random.randint(8, 2000), random.randint(8, 2000)) for _ in range(20)]
    write_tables(tests / "models" / "data" / "qwen3_vl.json", {
        "taps": [taps(*case) for case in TAPS],
        "sizes": [size(*case, *budget) for budget in BUDGETS for case in sizes],
        "frames": [frames(*video) for video in [*VIDEOS, (1, 30.0, 2.0, 4, 768)]],
    })
