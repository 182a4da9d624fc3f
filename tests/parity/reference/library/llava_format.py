"""A LLaVA sample for a LLaVA model: text as its training code writes it, token ids, the label mask, pixels.

Labels are the answer, with the space that the template puts before it, and the token that ends it.
"""

import torch
from PIL import Image

from library.conversation import IMAGE_MARK, Encoded, chatml, image_paths, join, mask_of_spans
from library.llava_checkpoints import image_token

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


FORMATS = {
    "llama": lambda turns: join(vicuna(turns)),
    "mistral": lambda turns: join(mistral(turns)),
    "qwen2": lambda turns: chatml(turns, "You are a helpful assistant."),
}


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


def find_image_id(processor, shape):
    return image_token(shape, processor.tokenizer.backend_tokenizer)


def encode(processor, shape, sample, image_root, turns=None):
    """With `turns`: only so many."""
    texts = [turn["value"] for turn in sample["conversations"]][:turns]
    text, spans = FORMATS[shape.text["model_type"]](texts)
    names = image_paths(sample, image_root)[: text.count(IMAGE_MARK)]
    images = [Image.open(name) for name in names]
    pixels = None
    if shape.layout == "original":
        ids, offsets = encode_between_images(processor.tokenizer, text, tokens_per_image(shape))
        if images:
            pixels = processor.image_processor(images, return_tensors="pt")["pixel_values"]
    else:
        expanded = [value.replace(IMAGE_MARK, IMAGE_MARK * tokens_per_image(shape)) for value in texts]
        full, spans = FORMATS[shape.text["model_type"]](expanded)
        own = processor.tokenizer(full, return_offsets_mapping=True)
        ids, offsets = own["input_ids"], own["offset_mapping"]
        batch = processor(text=[text], images=images or None, return_tensors="pt")
        assert batch["input_ids"][0].tolist() == ids, "the processor differs from the LLaVA format"
        pixels = batch["pixel_values"] if images else None
    return Encoded(
        input_ids=torch.tensor([find_image_id(processor, shape) if i is None else i for i in ids]),
        label_mask=mask_of_spans(offsets, spans),
        pixel_values=pixels,
        grids=[(0, 0)] * len(images),
        text=text,
    )
