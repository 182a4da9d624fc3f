"""A conversation for InternVL: text as its chat template writes it, token ids, the label mask, tiles.

Labels are the answer and <|im_end|>.
"""

import re

from transformers.models.got_ocr2.image_processing_got_ocr2 import get_optimal_tiled_canvas

from library.conversation import ROLES, Encoded, chatml, label_mask, moved, process

KINDS = {"<image>": "image", "<video>": "video"}
MARKS = {"image": "<IMG_CONTEXT>", "video": "<video>"}


def content_blocks(turn):
    """Splits a turn at its marks; the line break after the leading marks is LLaVA's separator, not part of the text."""
    turn = re.sub(r"^(?:<(?:image|video)>\n)+", lambda opening: opening[0].replace("\n", ""), turn)
    pieces = [piece for piece in re.split(r"(<image>|<video>)", turn) if piece]
    return [{"type": KINDS[piece]} if piece in KINDS else {"type": "text", "text": piece} for piece in pieces]


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
    text, spans = chatml(
        "".join(block.get("text") or MARKS[block["type"]] + "\n" for block in message["content"]) for message in messages
    )
    assert processor.apply_chat_template(messages, add_generation_prompt=bool(turns)) == text, "the template differs"
    inputs, images, videos = process(processor, text, sample, root, MARKS)
    ids, pixels = inputs["input_ids"][0], inputs.get("pixel_values")
    grids = [make_grid(image, shape) for image in images]
    most = shape.video_processor.get("num_frames")
    frames = [most or len(video) for video in videos]
    full = expanded(text, grids, frames, shape.tokens_per_tile)
    assert pixels is None or len(pixels) == sum(map(make_tiles, grids)) + sum(frames), "the tiles differ from the format"
    return Encoded(
        input_ids=ids,
        label_mask=label_mask(processor.tokenizer, full, moved(spans, text, full), ids),
        pixel_values=pixels,
        grids=grids + [(count, 1) for count in frames],
        text=text,
    )
