"""Writes what transformers' image processors of LLaVA make of images of many sizes:

    python make_llava_images.py > ../../../models/data/llava_images.json

An image's value at row y, column x, channel c is (7 x + 13 y + 29 c + x y mod 31) mod 256; results are CRC-32 of their bytes.
"""

import json
import zlib

import numpy as np
import torch
from transformers import CLIPImageProcessor, SiglipImageProcessor
from transformers.models.llava.image_processing_llava import LlavaImageProcessor

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
TYPES = {"clip": CLIPImageProcessor, "llava": LlavaImageProcessor, "siglip": SiglipImageProcessor}


def source_image(height, width):
    y, x, c = np.meshgrid(np.arange(height), np.arange(width), np.arange(3), indexing="ij")
    return ((7 * x + 13 * y + 29 * c + (x * y) % 31) % 256).astype(np.uint8)


def processor(config):
    kind = next(key for key in TYPES if key in json.dumps(config).lower())
    settings = {key: value for key, value in config.items() if not key.endswith("_type")}
    return TYPES[kind](**settings)


def main():
    cases = []
    for name, config in CONFIGS.items():
        for height, width in SIZES:
            image = torch.from_numpy(source_image(height, width)).permute(2, 0, 1)
            pixels = processor(config)([image], return_tensors="pt")["pixel_values"]
            crc = f"{zlib.crc32(pixels.contiguous().numpy().tobytes()):08x}"
            cases.append({"config": name, "height": height, "width": width, "shape": list(pixels.shape), "crc": crc})
    lines = ",\n".join(json.dumps(case) for case in cases)
    print(f'{{"configs": {json.dumps(CONFIGS)},\n"cases": [\n{lines}\n]}}')


if __name__ == "__main__":
    main()
