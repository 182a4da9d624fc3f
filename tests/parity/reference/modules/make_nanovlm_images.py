"""Writes what nanoVLM's image processor makes of images of many sizes:

    python make_nanovlm_images.py > ../../../models/data/nanovlm_images.json

An image's value at row y, column x, channel c is (7 x + 13 y + 29 c + x y mod 31) mod 256. `crc` is the CRC-32 of all tiles'
bytes, the whole image first and rounded (nanovlm_format.py); `off` how far that is from nanoVLM's floats, at most, in steps of
a byte.
"""

import json
import sys
import zlib
from pathlib import Path

import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the folder of library/

from library.nanovlm_format import make_tiles
from make_llava_images import image

SIZES = [
    (1, 1), (1, 40), (33, 33), (16, 16), (32, 16), (20, 31), (31, 20), (53, 70), (97, 64), (64, 97), (128, 96), (336, 250),
    (199, 613), (17, 300), (768, 1024),
]
TOKENS = {"image_token": "<|image|>"}
CONFIGS = {
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


def main():
    cases = []
    for name, config in CONFIGS.items():
        for height, width in SIZES:
            pixels, rounded, grid = make_tiles(Image.fromarray(image(height, width)), config)
            data = (rounded * 255).round().to(torch.uint8).contiguous().numpy().tobytes()
            cases.append({
                "config": name, "height": height, "width": width, "grid": grid, "tiles": len(pixels),
                "crc": f"{zlib.crc32(data):08x}", "off": round(255 * (rounded - pixels).abs().max().item(), 4),
            })
    lines = ",\n".join(json.dumps(case) for case in cases)
    print(f'{{"configs": {json.dumps(CONFIGS)},\n"cases": [\n{lines}\n]}}')


if __name__ == "__main__":
    main()
