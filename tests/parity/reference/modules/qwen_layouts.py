"""models/data/qwen2_vl.json: what transformers computes of sizes alone for Qwen2-VL and Qwen2.5-VL.

    smart_resize  [height, width, factor, least, most, height after, width after]; nulls where transformers refuses
    windows       grids, sizes; the order of tokens, lengths in patches, and each patch's row and column before the reordering
    positions     get_rope_index of a sample: grids of tokens, seconds of a temporal patch (null: an image), position ids
    frames        [frames, fps, wanted fps, least, most]: which frames are taken
"""

import random
from types import SimpleNamespace

import torch
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel
from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize
from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor
from transformers.video_utils import VideoMetadata
from transformers.vision_utils import get_vision_position_ids, get_vision_window_index

from library.cases import write_tables

SIZES = [
    (480, 640), (1080, 1920), (28, 28), (1, 1), (14, 42), (70, 70), (98, 41), (56, 11200), (56, 11228), (3, 500), (1000, 5),
    (2160, 3840), (8000, 6000), (333, 500), (42, 126), (10, 2000),
]
BUDGETS = [(3136, 12845056), (3136, 1003520), (200704, 200704 * 4), (100352, 602112)]
GRIDS = [
    ([[1, 8, 8]], 112), ([[1, 10, 14]], 112), ([[2, 6, 18], [1, 2, 4], [1, 16, 16]], 112), ([[1, 4, 6], [3, 2, 10]], 56),
]
# Tokens of text between; [frames, rows, columns] in tokens, seconds of a temporal patch.
SAMPLES = [
    ([5, 3], [([1, 4, 6], None)], 2),
    ([0, 1, 7], [([1, 2, 3], None), ([4, 3, 2], 1.0)], 2),
    ([2, 2, 0], [([3, 2, 2], 5 / 3), ([6, 1, 1], 0.37)], 4),
    ([4, 4], [([5, 1, 2], 1.1)], 25),
]
VIDEOS = [
    (100, 25.0, 2.0, 4, 768), (10, 2.0, 2.0, 4, 6), (7, 29.97, 2.0, 4, 768), (1234, 23.976, 2.0, 4, 64), (3, 10.0, 2.0, 4, 768),
    (250, 12.5, 0.5, 4, 768), (90, 30.0, 1.0, 4, 10), (11, 2.0, 2.0, 4, 768),
]


def resized(size, budget):
    try:
        return smart_resize(*size, 28, *budget)
    except ValueError:
        return None, None


def windows(grids, window):
    grids = torch.tensor(grids)
    order, offsets = get_vision_window_index(grids, spatial_merge_size=2, window_size=window, patch_size=14)
    return {
        "grids": grids.tolist(), "window_size": window, "order": order.tolist(), "lengths": offsets.diff().tolist(),
        "positions": get_vision_position_ids(grids, 2).tolist(),
    }


def positions(texts, spans, tokens_per_second):
    types = []
    for text, span in zip(texts, [*spans, None]):
        types += [0] * text
        if span:
            types += [1 if span[1] is None else 2] * (span[0][0] * span[0][1] * span[0][2])
    config = SimpleNamespace(vision_config=SimpleNamespace(spatial_merge_size=2, tokens_per_second=tokens_per_second))
    model = SimpleNamespace(config=config)
    model.get_vision_position_ids = lambda *args, **more: Qwen2_5_VLModel.get_vision_position_ids(model, *args, **more)
    patches = lambda grid: [grid[0], 2 * grid[1], 2 * grid[2]]  # noqa: E731
    position_ids, _ = Qwen2_5_VLModel.get_rope_index(
        model, torch.zeros(1, len(types), dtype=torch.long), torch.tensor([types]),
        image_grid_thw=torch.tensor([patches(grid) for grid, seconds in spans if seconds is None]),
        video_grid_thw=torch.tensor([patches(grid) for grid, seconds in spans if seconds is not None]),
        second_per_grid_ts=torch.tensor([seconds for _, seconds in spans if seconds is not None]),
    )
    return {
        "text": texts, "spans": spans, "tokens_per_second": tokens_per_second, "position_ids": position_ids[:, 0].flatten().tolist(),
    }


def frames(count, fps, num_frames, least, most):
    processor = Qwen2VLVideoProcessor(min_frames=least, max_frames=most)
    indices = processor.sample_frames(VideoMetadata(total_num_frames=count, fps=fps), fps=num_frames)
    return {"video": [count, fps, num_frames, least, most], "indices": indices.tolist()}


def make(tests):
    random.seed(0)
    sizes = SIZES + [(random.randint(1, 4000), random.randint(1, 4000)) for _ in range(20)]
    write_tables(tests / "models" / "data" / "qwen2_vl.json", {
        "smart_resize": [[*size, 28, *budget, *resized(size, budget)] for budget in BUDGETS for size in sizes],
        "windows": [windows(*case) for case in GRIDS],
        "positions": [positions(*case) for case in SAMPLES],
        "frames": [frames(*video) for video in VIDEOS],
    })
