"""A LLaVA sample for nanoVLM: text, token ids, the label mask and pixels, as its data/ folder makes them.

Facts from huggingface/nanoVLM: v0.1 for models without tokens for images, commit 4e0c096 for the others. Two things are
vlmtrain's: labels end with the token that ends the answer (nanoVLM's chat template adds the line break after it), and the whole
image is rounded to bytes (nanoVLM keeps the floats of its second resize).
"""

import math

import torch
from PIL import Image
from torchvision.transforms import functional

from library.conversation import IMAGE_MARK, Encoded, chatml, image_paths, join, mask_of_spans

CHAT_TEMPLATE = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def resized(height, width, config):
    """DynamicResize: the longer side to whole tiles, up to the limit; the shorter one follows and is rounded up."""
    tile, limit = config["vit_img_size"], config["max_img_size"]
    longer, shorter = max(height, width), min(height, width)
    target = limit if config.get("resize_to_max_side_len") else min(limit, math.ceil(longer / tile) * tile)
    follow = max(math.ceil(shorter * (target / longer) / tile) * tile, tile)
    return (follow, target) if width >= height else (target, follow)


def resize(image, size, interpolation):
    """Columns first, then rows, as Pillow up to 12 does in one call; 13 begins with the rows for some sizes."""
    narrowed = functional.resize(image, [image.height, size[1]], interpolation)
    return functional.resize(narrowed, list(size), interpolation)


def make_tiles(image, config):
    """float32 [tiles, 3, side, side] as nanoVLM has them, the same rounded to bytes, and the grid (rows, columns)."""
    tile = config["vit_img_size"]
    if "max_img_size" not in config:
        square = functional.to_tensor(resize(image, (tile, tile), functional.InterpolationMode.BILINEAR))[None]
        return square, square, (1, 1)
    size = resized(image.height, image.width, config)
    pixels = functional.to_tensor(resize(image, size, functional.InterpolationMode.BICUBIC))
    rows, columns = size[0] // tile, size[1] // tile
    cells = pixels.reshape(3, rows, tile, columns, tile).permute(1, 3, 0, 2, 4).reshape(-1, 3, tile, tile)
    if rows * columns == 1 or "global_image_token" not in config["vlm_extra_tokens"]:
        return cells, cells, (rows, columns)
    whole = functional.resize(pixels[None], [tile, tile])
    rounded = to_bytes(functional.resize((pixels[None].double() * 255).round(), [tile, tile]))
    return torch.cat([whole, cells]), torch.cat([rounded, cells]), (rows, columns)


def to_bytes(values):
    """Rounds as vlmtrain: halves, and values less than 1e-6 below them, go up. Uses float64, since float32 is less exact."""
    return torch.floor(values + 0.5 + 1e-6).clamp(0, 255).float().div(255)


def image_text(grid, config):
    tokens = config["vlm_extra_tokens"]
    tile = tokens["image_token"] * config["mp_image_token_length"]
    if "max_img_size" not in config:
        return tile
    text = ""
    if "global_image_token" in tokens:
        text = tokens["global_image_token"] + tile
        if grid == (1, 1):
            return text
    for row in range(1, grid[0] + 1):
        for column in range(1, grid[1] + 1):
            text += tokens[f"r{row}c{column}"] + tile
    return text


def question_answer(turns):
    for index, turn in enumerate(turns):
        yield (f"Question: {turn} Answer:", False) if index % 2 == 0 else (f"{turn}<|endoftext|>", True)


def encode(tokenizer, shape, sample, image_root, turns=None):
    """With `turns`: only so many. Without tokens for images, the ids of the features before the text are 0."""
    config = shape.config
    texts = [turn["value"] for turn in sample["conversations"]][:turns]
    names = image_paths(sample, image_root)[: sum(text.count(IMAGE_MARK) for text in texts)]
    tiles = [make_tiles(Image.open(name).convert("RGB"), config) for name in names]
    grids = [grid for _, _, grid in tiles]
    # nanoVLM's data have no marks: it puts all images before the first turn. So do the samples here.
    texts = [text.replace(IMAGE_MARK + "\n", "") for text in texts]
    features = 0
    if "vlm_extra_tokens" in config:
        marks = [f"<image: {i}>" if len(grids) > 1 else "" for i in range(len(grids))]
        texts[0] = "".join(mark + image_text(grid, config) for mark, grid in zip(marks, grids)) + texts[0]
        text, spans = chatml(texts)
        messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
        expected = tokenizer.apply_chat_template(
            messages, chat_template=CHAT_TEMPLATE, tokenize=False, add_generation_prompt=len(texts) % 2 == 1
        )
        assert text == expected, "the chat template differs from the format"
    else:
        text, spans = join(question_answer(texts))
        side = config["vit_img_size"] // config["vit_patch_size"] // config["mp_pixel_shuffle_factor"]
        features = sum(len(pixels) for pixels, _, _ in tiles) * side * side
    own = tokenizer(text, return_offsets_mapping=True)
    mask = mask_of_spans(own["offset_mapping"], spans)
    ids = torch.tensor([0] * features + own["input_ids"])
    places = torch.arange(features)
    if "vlm_extra_tokens" in config:
        places = (ids == tokenizer.convert_tokens_to_ids(config["vlm_extra_tokens"]["image_token"])).nonzero()[:, 0]
    rounded = torch.cat([rounded for _, rounded, _ in tiles]) if tiles else None
    encoded = Encoded(
        input_ids=ids,
        label_mask=torch.cat([torch.zeros(features, dtype=torch.bool), mask]),
        pixel_values=rounded,
        grids=grids,
        text=text,
        model_inputs={"pixel_values": rounded, "image_places": places} if tiles else {},
    )
    encoded.unrounded_pixels = torch.cat([pixels for pixels, _, _ in tiles]) if tiles else None
    return encoded
