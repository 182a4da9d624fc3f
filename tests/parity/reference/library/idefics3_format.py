"""A LLaVA sample as transformers sees it: chat messages, token ids, the label mask, pixels.

The prompt is built twice, once by the checkpoint's own processor and chat template and once here from the definition of the
Idefics3 format; both must agree. The second one knows where each answer begins and ends, so the label mask follows from it.

Labels are what the model has to write after the generation prompt "Assistant:": the answer, with the space that the template
puts before it, and <end_of_utterance>. The newline after it belongs to the template.
"""

from PIL import Image

from library.conversation import IMAGE_MARK, ROLES, Encoded, image_paths, label_mask

END_OF_UTTERANCE = "<end_of_utterance>"


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


def encode(processor, shape, sample, image_root, turns=None):
    """With `turns`: only so many, and the generation prompt."""
    messages = to_messages(sample)[:turns]
    prompt = processor.apply_chat_template(messages, add_generation_prompt=bool(turns))
    images = [Image.open(path) for path in image_paths(sample, image_root)[: prompt.count(IMAGE_MARK)]]
    batch = processor(text=[prompt], images=[images] if images else None, return_tensors="pt")

    grids = []
    if images:
        info = processor.image_processor([images], return_row_col_info=True)
        grids = list(zip(info["rows"][0], info["cols"][0]))
    ending = "Assistant:" if turns else ""
    text, spans = render(messages, [expand_image(grid, processor.image_seq_len) for grid in grids])
    assert render(messages, [IMAGE_MARK] * len(images))[0] + ending == prompt, "the chat template differs from the format"
    return encoded(processor, batch, text + ending, spans, grids, text + ending)


def encoded(processor, batch, full, spans, grids, text):
    """Returns the sample. batch: of the processor; full: the text with its marks expanded; spans: of characters that are labels."""
    return Encoded(
        input_ids=batch["input_ids"][0],
        label_mask=label_mask(processor.tokenizer, full, spans, batch["input_ids"][0]),
        pixel_values=batch["pixel_values"][0] if grids else None,
        grids=grids,
        text=text,
        model_inputs={name: batch[name] for name in ("pixel_values", "pixel_attention_mask") if grids},
    )
