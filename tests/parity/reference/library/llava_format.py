"""A LLaVA sample for a LLaVA model: text as its training code writes it, token ids, the label mask, pixels.

Labels are the answer, with the space that the template puts before it, and the token that ends it.
"""

import torch
from PIL import Image

from library.llava import IMAGE_MARK, Encoded, image_paths, mask_of_spans

VICUNA_SYSTEM = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, detailed, and polite "
    "answers to the user's questions. "
)


def vicuna(turns):
    yield VICUNA_SYSTEM, False
    for index, turn in enumerate(turns):
        if index % 2 == 0:
            yield f"USER: {turn} ASSISTANT:", False
        else:
            yield f" {turn}</s>", True


def mistral(turns):
    for index, turn in enumerate(turns):
        yield (f"[INST] {turn} [/INST]", False) if index % 2 == 0 else (f" {turn} </s>", True)


def qwen(turns):
    yield "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n", False
    for index, turn in enumerate(turns):
        if index % 2 == 0:
            yield f"<|im_start|>user\n{turn}<|im_end|>\n<|im_start|>assistant\n", False
        else:
            yield f"{turn}<|im_end|>", True
            yield "\n", False


FORMATS = {"llama": vicuna, "mistral": mistral, "qwen2": qwen}


def render(kind, turns):
    """The text, one mark an image, and the character spans of the answers."""
    text, spans = "", []
    for piece, is_answer in FORMATS[kind](turns):
        if is_answer:
            spans.append((len(text), len(text) + len(piece)))
        text += piece
    return text, spans


def encode_between_images(tokenizer, text, count):
    """As LLaVA's tokenizer_image_token: each text on its own, the first one with <s>; None where an image feature goes."""
    ids, offsets, start = [], [], 0
    for index, piece in enumerate(text.split(IMAGE_MARK)):
        if index:
            ids += [None] * count
            offsets += [(start - len(IMAGE_MARK), start)] * count
        own = tokenizer(piece, return_offsets_mapping=True, add_special_tokens=index == 0)
        ids += own["input_ids"]
        offsets += [(begin + start, end + start) for begin, end in own["offset_mapping"]]
        start += len(piece) + len(IMAGE_MARK)
    return ids, offsets


def tokens_per_image(shape):
    side = shape.vision["image_size"] // shape.vision["patch_size"]
    rows = side * side + (shape.vision["model_type"] == "clip_vision_model")
    return rows - (shape.llava.get("vision_feature_select_strategy", "default") == "default")


def encode(processor, shape, image_token_id, sample, image_root, turns=None):
    """With `turns`: only so many."""
    texts = [turn["value"] for turn in sample["conversations"]][:turns]
    text, spans = render(shape.text["model_type"], texts)
    names = image_paths(sample, image_root)[: text.count(IMAGE_MARK)]
    images = [Image.open(name) for name in names]
    pixels = None
    if shape.layout == "original":
        ids, offsets = encode_between_images(processor.tokenizer, text, tokens_per_image(shape))
        if images:
            pixels = processor.image_processor(images, return_tensors="pt")["pixel_values"]
    else:
        expanded = [value.replace(IMAGE_MARK, IMAGE_MARK * tokens_per_image(shape)) for value in texts]
        full, spans = render(shape.text["model_type"], expanded)
        own = processor.tokenizer(full, return_offsets_mapping=True)
        ids, offsets = own["input_ids"], own["offset_mapping"]
        batch = processor(text=[text], images=images or None, return_tensors="pt")
        assert batch["input_ids"][0].tolist() == ids, "the processor differs from the LLaVA format"
        pixels = batch["pixel_values"] if images else None
    return Encoded(
        input_ids=torch.tensor([image_token_id if i is None else i for i in ids]),
        label_mask=mask_of_spans(offsets, spans),
        pixel_values=pixels,
        pixel_attention_mask=None,
        grids=[(0, 0)] * len(images),
        text=text,
    )
