"""A conversation for a text model: text as its chat template writes it, token ids, the label mask.

Labels are the answers and the token that ends them.
"""

import torch

from library.gemma import gemma3_format
from library.conversation import ROLES, Encoded, chatml, mask_of_spans


def encode(tokenizer, shape, sample, root, turns=None):
    """With `turns`: only so many, and the generation prompt. root: not used."""
    conversation = sample["conversations"][:turns]
    texts = [turn["value"] for turn in conversation]
    text, spans = gemma3_format.render(texts, []) if shape.chat_format == "gemma" else chatml(texts)
    if shape.with_template:
        messages = [{"role": ROLES[turn["from"]], "content": turn["value"]} for turn in conversation]
        own = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=len(conversation) % 2 == 1)
        assert own == text, "the chat template differs from the format"
    encoding = tokenizer(text, return_offsets_mapping=True)
    return Encoded(
        input_ids=torch.tensor(encoding["input_ids"]),
        label_mask=mask_of_spans(encoding["offset_mapping"], spans),
        pixel_values=None,
        grids=[],
        text=text,
    )
