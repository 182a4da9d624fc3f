"""A LLaVA sample as transformers sees it: chat messages, token ids, the label mask, pixels.

The prompt is built twice, once by the checkpoint's own processor and chat template and once here from the definition of the
Idefics3 format; both must agree. The second one knows where each answer begins and ends, so the label mask follows from it.

Labels are what the model has to write after the generation prompt "Assistant:": the answer, with the space that the template
puts before it, and <end_of_utterance>. The newline after it belongs to the template.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image

IMAGE_MARK = "<image>"
END_OF_UTTERANCE = "<end_of_utterance>"
ROLES = {"human": "user", "gpt": "assistant"}


@dataclass
class Encoded:
    """One sample: input_ids and label_mask [tokens], pixel_values [tiles, 3, side, side] or None without images."""

    input_ids: torch.Tensor
    label_mask: torch.Tensor
    pixel_values: torch.Tensor | None
    pixel_attention_mask: torch.Tensor | None
    grids: list[tuple[int, int]]
    text: str


def image_paths(sample, image_root):
    names = sample.get("image", [])
    return [Path(image_root) / name for name in ([names] if isinstance(names, str) else names)]


def content_blocks(text):
    """Splits a turn at its image marks. The newline after a mark is LLaVA's separator, not part of the text."""
    blocks = []
    for index, part in enumerate(text.split(IMAGE_MARK)):
        if index > 0:
            blocks.append({"type": "image"})
            part = part.removeprefix("\n")
        if part:
            blocks.append({"type": "text", "text": part})
    return blocks


def to_messages(sample):
    return [{"role": ROLES[turn["from"]], "content": content_blocks(turn["value"])} for turn in sample["conversations"]]


def expand_image(grid, tokens_per_tile):
    """Returns the text of one image; grid is (rows, columns) of its tiles, (0, 0) for an image that is not split."""
    rows, columns = grid
    tile = IMAGE_MARK * tokens_per_tile
    text = ""
    for row in range(rows):
        for column in range(columns):
            text += f"<fake_token_around_image><row_{row + 1}_col_{column + 1}>{tile}"
        text += "\n"
    if rows:
        text += "\n"
    return text + f"<fake_token_around_image><global-img>{tile}<fake_token_around_image>"


def render(messages, image_texts):
    """The whole prompt and the character spans that are labels."""
    images = iter(image_texts)
    text = "<|im_start|>"
    spans = []
    for message in messages:
        text += message["role"].capitalize() + ":"
        start = len(text)
        if message["content"][0]["type"] != "image":
            text += " "
        for block in message["content"]:
            text += block["text"] if block["type"] == "text" else next(images)
        text += END_OF_UTTERANCE
        if message["role"] == "assistant":
            spans.append((start, len(text)))
        text += "\n"
    return text, spans


def mask_of_spans(offsets, spans):
    mask = []
    for begin, end in offsets:
        inside = [start <= begin and end <= stop for start, stop in spans]
        touching = [begin < stop and end > start for start, stop in spans]
        assert inside == touching, f"the token at {begin}:{end} crosses the border of an answer"
        mask.append(any(inside))
    return torch.tensor(mask)


def encode(processor, sample, image_root):
    messages = to_messages(sample)
    prompt = processor.apply_chat_template(messages)
    images = [Image.open(path) for path in image_paths(sample, image_root)]
    batch = processor(text=[prompt], images=[images] if images else None, return_tensors="pt")

    grids = []
    if images:
        info = processor.image_processor([images], return_row_col_info=True)
        grids = list(zip(info["rows"][0], info["cols"][0]))
    image_texts = [expand_image(grid, processor.image_seq_len) for grid in grids]
    text, spans = render(messages, image_texts)
    assert render(messages, [IMAGE_MARK] * len(images))[0] == prompt, "the chat template differs from the format"
    own = processor.tokenizer(text, return_offsets_mapping=True)
    assert own["input_ids"] == batch["input_ids"][0].tolist(), "the processor differs from the Idefics3 format"

    return Encoded(
        input_ids=batch["input_ids"][0],
        label_mask=mask_of_spans(own["offset_mapping"], spans),
        pixel_values=batch["pixel_values"][0] if images else None,
        pixel_attention_mask=batch["pixel_attention_mask"][0] if images else None,
        grids=grids,
        text=text,
    )


def encode_prompt(processor, sample, image_root):
    """The sample's first user turn with the generation prompt, as a batch of one for generate()."""
    messages = to_messages(sample)[:1]
    prompt = processor.apply_chat_template(messages, add_generation_prompt=True)
    count = sum(block["type"] == "image" for block in messages[0]["content"])
    images = [Image.open(path) for path in image_paths(sample, image_root)[:count]]
    return processor(text=[prompt], images=[images] if images else None, return_tensors="pt")
