"""A conversation for InternVL: text as its chat template writes it, token ids, the label mask, tiles.

Labels are the answer and <|im_end|>. A video is a folder of frames, taken as sampled at FRAMES_PER_SECOND.
"""

import re

import torch
from PIL import Image
from transformers.models.got_ocr2.image_processing_got_ocr2 import get_optimal_tiled_canvas

from library.llava import Encoded, image_paths, mask_of_spans
from library.qwen_format import FRAMES_PER_SECOND, moved, read_frames

ROLES = {"human": "user", "gpt": "assistant"}
KINDS = {"<image>": "image", "<video>": "video"}


def content_blocks(turn):
    """Splits a turn at its marks; the line break after the leading marks is LLaVA's separator, not part of the text."""
    turn = re.sub(r"^(?:<(?:image|video)>\n)+", lambda opening: opening[0].replace("\n", ""), turn)
    pieces = [piece for piece in re.split(r"(<image>|<video>)", turn) if piece]
    return [{"type": KINDS[piece]} if piece in KINDS else {"type": "text", "text": piece} for piece in pieces]


def render(messages):
    """The text, one mark an image or video, and the character spans of the answers."""
    text, spans = "", []
    marks = {"image": "<IMG_CONTEXT>\n", "video": "<video>\n"}
    for message in messages:
        text += f"<|im_start|>{message['role']}\n"
        begin = len(text)
        text += "".join(marks.get(block["type"]) or block["text"] for block in message["content"]) + "<|im_end|>"
        if message["role"] == "assistant":
            spans.append((begin, len(text)))
        text += "\n"
    return text, spans


def media(sample, text, root):
    images = [Image.open(path).convert("RGB") for path in image_paths(sample, root)[: text.count("<IMG_CONTEXT>")]]
    names = sample.get("video", [])
    names = [names] if isinstance(names, str) else names
    return images, [read_frames(root / name) for name in names[: text.count("<video>")]]


def process(processor, text, images, videos):
    more = {}
    if videos:
        described = [
            {"fps": FRAMES_PER_SECOND, "total_num_frames": len(video), "width": video.shape[3], "height": video.shape[2]}
            for video in videos
        ]
        more = {"videos": [videos], "video_metadata": [described], "do_sample_frames": True, "fps": FRAMES_PER_SECOND}
    return dict(processor(text=[text], images=images or None, return_tensors="pt", **more))


def make_grid(image, shape):
    columns, rows = get_optimal_tiled_canvas((image.height, image.width), (shape.side, shape.side), *shape.tiles)
    return rows, columns


def make_tiles(grid):
    return 1 if grid == (1, 1) else grid[0] * grid[1] + 1


def expanded(text, grids, frames, tokens):
    """Replaces the placeholders by their tokens, written here from the definition."""
    tile, grids, frames = "<IMG_CONTEXT>" * tokens, iter(grids), iter(frames)

    def replaced(mark):
        if mark[0] == "<IMG_CONTEXT>":
            return f"<img>{tile * make_tiles(next(grids))}</img>"
        return "\n".join(f"Frame{number + 1}: <img>{tile}</img>" for number in range(next(frames)))

    return re.sub(r"<IMG_CONTEXT>|<video>", replaced, text)


def encode(processor, shape, sample, root, turns=None):
    """With `turns`: only so many, and the generation prompt."""
    messages = [
        {"role": ROLES[turn["from"]], "content": content_blocks(turn["value"])} for turn in sample["conversations"][:turns]
    ]
    text, spans = render(messages)
    text += "<|im_start|>assistant\n" if turns else ""
    assert processor.apply_chat_template(messages, add_generation_prompt=bool(turns)) == text, "the template differs"
    images, videos = media(sample, text, root)
    inputs = process(processor, text, images, videos)
    ids, pixels = inputs["input_ids"][0], inputs.get("pixel_values")
    grids = [make_grid(image, shape) for image in images]
    most = shape.video_processor.get("num_frames")
    frames = [most or len(video) for video in videos]
    full = expanded(text, grids, frames, shape.tokens_per_tile)
    own = processor.tokenizer(full, return_offsets_mapping=True)
    assert own["input_ids"] == ids.tolist(), "the processor differs from the format"
    assert pixels is None or len(pixels) == sum(map(make_tiles, grids)) + sum(frames), "the tiles differ from the format"
    return Encoded(
        input_ids=ids,
        label_mask=mask_of_spans(own["offset_mapping"], moved(spans, text, full)),
        pixel_values=pixels,
        pixel_attention_mask=None,
        grids=grids + [(count, 1) for count in frames],
        text=text,
    )
