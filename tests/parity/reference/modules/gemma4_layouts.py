"""models/data/gemma4.json: what transformers' processors of Gemma 4 compute of images and videos, without a tokenizer.

    versions  of the packages that made the file
    sizes     [patch_size, pooling_kernel_size, max_soft_tokens, height, width, height after, width after]
    pixels    `crc`: the CRC-32 of the bytes [patches, 3, p, p], the patches of a token adjacent; p = patch_size, or with merged
              patches patch_size · pooling_kernel_size. An image has the seed 0, frames the seeds 0, 1, …
    frames    [frames, fps, num_frames, fps argument]: which frames are taken (null: transformers refuses), and the text of the
              video with two tokens per frame
    images    [tokens, text]

The value of source image s at row y, column x, channel c is (7 x + 13 y + 29 c + x y mod 31 + 17 s) mod 256.
"""

import random
import zlib
from types import SimpleNamespace

import numpy as np
import torch
import torchvision
import transformers
from transformers.models.gemma4.image_processing_gemma4 import Gemma4ImageProcessor, get_aspect_ratio_preserving_size
from transformers.models.gemma4.processing_gemma4 import Gemma4Processor
from transformers.models.gemma4.video_processing_gemma4 import Gemma4VideoProcessor
from transformers.models.gemma4_unified.image_processing_gemma4_unified import Gemma4UnifiedImageProcessor
from transformers.models.gemma4_unified.processing_gemma4_unified import Gemma4UnifiedProcessor
from transformers.models.gemma4_unified.video_processing_gemma4_unified import Gemma4UnifiedVideoProcessor
from transformers.video_utils import VideoMetadata

from library.cases import write_tables

BUDGETS = (70, 140, 280, 560, 1120)
SHAPES = [(16, 3), (4, 2)]
SIZES = [
    (480, 640), (1080, 1920), (1, 1), (48, 48), (47, 49), (768, 768), (1, 70), (70, 1), (1, 71), (1, 5000), (5000, 1), (3, 853),
    (2000, 7), (10, 11200), (11200, 10), (4000, 57), (8000, 6000), (333, 500), (816, 768), (384, 431),
]
# Medium, max_soft_tokens, [height, width].
PIXELS = [
    ("image", 70, (37, 53)), ("image", 70, (384, 432)), ("image", 70, (199, 613)), ("image", 140, (1, 300)),
    ("image", 280, (700, 513)), ("image", 1120, (61, 60)),
    ("video", 70, (37, 53)), ("video", 70, (300, 411)), ("video", 140, (90, 31)),
]
NUM_VIDEO_FRAMES = 2
VIDEOS = [
    (300, 30.0, 32, None), (32, 25.0, 32, None), (33, 25.0, 32, None), (31, 25.0, 32, None), (1000, 23.976, 7, None),
    (5400, 0.5, 4, None), (100, None, 5, None), (100, 29.97, None, 2.0), (7, 30.0, None, 2.0), (215, 12.5, None, 0.3),
    (100000, 25.0, 11, None), (1, 24.0, 1, None), (100, 25.0, 32, 1.0),
]
TOKENS = SimpleNamespace(boi_token="<|image>", image_token="<|image|>", video_token="<|video|>", eoi_token="<image|>")


def source_image(height, width, seed):
    y, x, c = np.meshgrid(np.arange(height), np.arange(width), np.arange(3), indexing="ij")
    return ((7 * x + 13 * y + 29 * c + (x * y) % 31 + 17 * seed) % 256).astype(np.uint8)


def sizes():
    random.seed(0)
    sizes = SIZES + [(random.randint(1, 4000), random.randint(1, 4000)) for _ in range(20)]
    return [
        [patch, pooling, budget, *size, *get_aspect_ratio_preserving_size(*size, patch, budget * pooling**2, pooling)]
        for patch, pooling in SHAPES for budget in BUDGETS for size in sizes
    ]


def patches_by_token(values, positions, pooling):
    """Returns the bytes of one image [patches, 3, p, p], with the patches of a token adjacent."""
    real = (positions >= 0).all(-1)
    values, positions = values[real], positions[real]
    pixels = (values * 255).round().to(torch.uint8)
    assert torch.allclose(pixels.float() / 255, values, rtol=0, atol=1e-6)
    side = round((values.shape[-1] // 3) ** 0.5)
    columns, rows = (positions.max(0).values + 1).tolist()
    assert positions.tolist() == [[x, y] for y in range(rows) for x in range(columns)]
    grid = pixels.view(rows // pooling, pooling, columns // pooling, pooling, side, side, 3)
    return grid.permute(0, 2, 1, 3, 6, 4, 5).reshape(-1, 3, side, side).contiguous(), rows, columns


def pixels(medium, unified, budget, size):
    pooling = 1 if unified else 3
    if medium == "image":
        processor = (Gemma4UnifiedImageProcessor if unified else Gemma4ImageProcessor)(max_soft_tokens=budget)
        result = processor(source_image(*size, 0), input_data_format="channels_last", return_tensors="pt")
        values, positions = result["pixel_values"], result["image_position_ids"]
        tokens = result["num_soft_tokens_per_image"]
    else:
        processor = (Gemma4UnifiedVideoProcessor if unified else Gemma4VideoProcessor)(max_soft_tokens=budget)
        video = np.stack([source_image(*size, seed) for seed in range(NUM_VIDEO_FRAMES)])
        result = processor([video], do_sample_frames=False, input_data_format="channels_last", return_tensors="pt")
        values, positions = result["pixel_values_videos"], result["video_position_ids"]
        tokens = result["num_soft_tokens_per_video"]
    frames = [patches_by_token(*frame, pooling) for frame in zip(values, positions)]
    crc = 0
    for patches, *_ in frames:
        crc = zlib.crc32(patches.numpy().tobytes(), crc)
    return {
        "medium": medium, "unified": unified, "max_soft_tokens": budget, "size": size, "frames": len(frames),
        "rows": frames[0][1], "columns": frames[0][2], "tokens": int(tokens[0]), "crc": f"{crc:08x}",
    }


def frames(count, fps, num_frames, fps_argument):
    texts = set()
    for video_type, processor_type in (
        (Gemma4VideoProcessor, Gemma4Processor), (Gemma4UnifiedVideoProcessor, Gemma4UnifiedProcessor),
    ):
        video_processor = video_type(num_frames=num_frames, fps=fps_argument)
        metadata = VideoMetadata(total_num_frames=count, fps=fps)
        try:
            metadata.frames_indices = video_processor.sample_frames(metadata, num_frames=num_frames, fps=fps_argument)
        except ValueError:
            return {"video": [count, fps, num_frames, fps_argument], "indices": None}
        inputs = {"num_soft_tokens_per_video": [2], "video_metadata": [metadata]}
        texts.add(processor_type.replace_video_token(TOKENS, inputs, 0))
    (text,) = texts
    return {"video": [count, fps, num_frames, fps_argument], "indices": metadata.frames_indices.tolist(), "text": text}


def image_text(tokens):
    return [tokens, Gemma4Processor.replace_image_token(TOKENS, {"num_soft_tokens_per_image": [tokens]}, 0)]


def make(tests):
    write_tables(tests / "models" / "data" / "gemma4.json", {
        "versions": [f"{package.__name__} {package.__version__}" for package in (transformers, torch, torchvision)],
        "sizes": sizes(),
        "pixels": [pixels(medium, unified, *case) for unified in (False, True) for medium, *case in PIXELS],
        "frames": [frames(*video) for video in VIDEOS],
        "images": [image_text(tokens) for tokens in (1, 3)],
    })
