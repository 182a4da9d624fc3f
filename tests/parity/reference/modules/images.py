"""models/data/llava_images.json and nanovlm_images.json: what image processors make of images of many sizes.

An image's value at row y, column x, channel c is (7 x + 13 y + 29 c + x y mod 31) mod 256. `crc` is the CRC-32 of the results'
bytes. For nanoVLM it is that of all tiles, the whole image first and rounded (nanovlm_format.py); `off` is how far that is from
nanoVLM's floats, at most, in steps of a byte.
"""

import json
import zlib

import numpy as np
import torch
from PIL import Image
from transformers import CLIPImageProcessor, SiglipImageProcessor
from transformers.models.llava.image_processing_llava import LlavaImageProcessor

from library.nanovlm_format import make_tiles

SIZES = [(1, 1), (1, 40), (33, 33), (20, 31), (31, 20), (53, 70), (97, 64), (64, 97), (336, 250), (199, 613), (17, 300)]
CONFIGS = {
    "clip": {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 56}, "crop_size": {"height": 56, "width": 56}},
    "clip_old": {"feature_extractor_type": "CLIPFeatureExtractor", "size": 42, "crop_size": 42, "resample": 3},
    "crop_beyond_the_picture": {
        "image_processor_type": "CLIPImageProcessorFast", "size": {"shortest_edge": 31}, "crop_size": {"height": 56, "width": 56},
    },
    "squashed": {"image_processor_type": "CLIPImageProcessor", "size": {"height": 30, "width": 40}, "do_center_crop": False},
    "padded": {
        "image_processor_type": "LlavaImageProcessor", "do_pad": True, "size": {"shortest_edge": 56},
        "crop_size": {"height": 56, "width": 56},
    },
    "siglip": {"image_processor_type": "SiglipImageProcessor", "size": {"height": 38, "width": 38}, "resample": 2},
}
NANOVLM_SIZES = [
    (1, 1), (1, 40), (33, 33), (16, 16), (32, 16), (20, 31), (31, 20), (53, 70), (97, 64), (64, 97), (128, 96), (336, 250),
    (199, 613), (17, 300), (768, 1024),
]
TOKENS = {"image_token": "<|image|>"}
NANOVLM_CONFIGS = {
    "square": {"vit_img_size": 24},
    "tiles": {"vit_img_size": 16, "max_img_size": 64, "vlm_extra_tokens": TOKENS},
    "whole_and_tiles": {
        "vit_img_size": 16, "max_img_size": 64, "vlm_extra_tokens": TOKENS | {"global_image_token": "<|global_image|>"},
    },
    "longest_side": {
        "vit_img_size": 32, "max_img_size": 96, "resize_to_max_side_len": True,
        "vlm_extra_tokens": TOKENS | {"global_image_token": "<|global_image|>"},
    },
}
TYPES = {"clip": CLIPImageProcessor, "llava": LlavaImageProcessor, "siglip": SiglipImageProcessor}


def source_image(height, width):
    y, x, c = np.meshgrid(np.arange(height), np.arange(width), np.arange(3), indexing="ij")
    return ((7 * x + 13 * y + 29 * c + (x * y) % 31) % 256).astype(np.uint8)


def processor(config):
    kind = next(key for key in TYPES if key in json.dumps(config).lower())
    settings = {key: value for key, value in config.items() if not key.endswith("_type")}
    return TYPES[kind](**settings)


def crc(tensor):
    return f"{zlib.crc32(tensor.contiguous().numpy().tobytes()):08x}"


def llava_case(config, image):
    pixels = processor(config)([torch.from_numpy(image).permute(2, 0, 1)], return_tensors="pt")["pixel_values"]
    return {"shape": list(pixels.shape), "crc": crc(pixels)}


def nanovlm_case(config, image):
    pixels, rounded, grid = make_tiles(Image.fromarray(image), config)
    return {
        "grid": grid, "tiles": len(pixels), "crc": crc((rounded * 255).round().to(torch.uint8)),
        "off": round(255 * (rounded - pixels).abs().max().item(), 4),
    }


def write(path, configs, sizes, make_case):
    cases = [
        {"config": name, "height": height, "width": width} | make_case(config, source_image(height, width))
        for name, config in configs.items() for height, width in sizes
    ]
    lines = ",\n".join(json.dumps(case) for case in cases)
    path.write_text(f'{{"configs": {json.dumps(configs)},\n"cases": [\n{lines}\n]}}\n')


def make(tests):
    write(tests / "models" / "data" / "llava_images.json", CONFIGS, SIZES, llava_case)
    write(tests / "models" / "data" / "nanovlm_images.json", NANOVLM_CONFIGS, NANOVLM_SIZES, nanovlm_case)
