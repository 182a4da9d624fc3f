"""A conversation for a text model: text as its chat template writes it, token ids, the label mask.

Labels are the answers and the token that ends them.
"""

import torch

from library import gemma3_format
from library.llava import ROLES, Encoded, mask_of_spans


def chatml(turns):
    """The text, and the character spans of the answers."""
    text, spans = "", []
    for index, turn in enumerate(turns):
        text += "<|im_start|>user\n" if index % 2 == 0 else "<|im_start|>assistant\n"
        if index % 2 == 1:
            spans.append((len(text), len(text) + len(turn) + len("<|im_end|>")))
        text += f"{turn}<|im_end|>\n"
    return text, spans


def render(chat_format, turns):
    if chat_format == "gemma":
        return gemma3_format.render(turns, [])
    text, spans = chatml(turns)
    return (text + "<|im_start|>assistant\n" if len(turns) % 2 == 1 else text), spans


def encode(tokenizer, shape, sample, turns=None):
    """With `turns`: only so many, and the generation prompt."""
    conversation = sample["conversations"][:turns]
    text, spans = render(shape.chat_format, [turn["value"] for turn in conversation])
    if shape.with_template:
        messages = [{"role": ROLES[turn["from"]], "content": turn["value"]} for turn in conversation]
        own = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=len(conversation) % 2 == 1)
        assert own == text, "the chat template differs from the format"
    encoding = tokenizer(text, return_offsets_mapping=True)
    return Encoded(
        input_ids=torch.tensor(encoding["input_ids"]),
        label_mask=mask_of_spans(encoding["offset_mapping"], spans),
        pixel_values=None,
        pixel_attention_mask=None,
        grids=[],
        text=text,
    )
