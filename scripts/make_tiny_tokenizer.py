#!/usr/bin/env python3
"""Trains the tokenizer of a tiny preset: byte-level BPE with the special tokens of SmolVLM, LLaVA, nanoVLM, Qwen-VL, InternVL, Gemma 3 or Gemma 4.

    pip install tokenizers==0.23.3
    scripts/make_tiny_tokenizer.py [--preset smolvlm-tiny|llava-tiny|nanovlm-tiny|qwen2.5-vl-tiny|qwen3-vl-tiny|qwen3.5-tiny|internvl3-tiny|gemma-3-tiny|gemma-4-tiny|prs-med-tiny|brain-llava-tiny] [--out FILE]

The merges come from the sentences of scripts/make_shapes.py (of scripts/make_organs.py for prs-med-tiny, of questions on head scans
for brain-llava-tiny) and from some common English below. So the quickstart's words are one token each, and other text is spelled
in pieces. The same input gives the same file.
"""

import argparse
from pathlib import Path

from make_organs import sentences as organs_sentences
from make_shapes import COLOURS, FORMS, PLACES
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

BASE_VOCABULARY = 600
TILE_TOKENS = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
SMOLVLM_LAST_TOKENS = ["<global-img>", *TILE_TOKENS, "<fake_token_around_image>", "<image>", "<end_of_utterance>"]
QWEN_LAST_TOKENS = [
    "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>",
]
INTERNVL_LAST_TOKENS = ["<|im_start|>", "<|im_end|>", "<img>", "</img>", "<IMG_CONTEXT>", "<video>"]
GEMMA_LAST_TOKENS = ["<start_of_turn>", "<end_of_turn>", "<start_of_image>", "<end_of_image>", "<image_soft_token>"]
GEMMA4_LAST_TOKENS = [
    "<|turn>", "<turn|>", "<|image>", "<image|>", "<|image|>", "<|video|>", "<|audio>", "<audio|>", "<|audio|>",
]
QWEN_SYSTEM = "You are a helpful assistant."
# For each preset: the tokens before all others, those after them, the token that begins a text, the words of its chat template.
PRESETS = {
    "smolvlm-tiny": (
        ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], SMOLVLM_LAST_TOKENS, None, ("User:", "Assistant:", "System:")
    ),
    "smolvlm2-tiny": (
        ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], SMOLVLM_LAST_TOKENS, None, ("User:", "Assistant:", "System:")
    ),
    "llava-tiny": (["<unk>", "<s>", "</s>"], ["<image>"], "<s>", ("USER:", "ASSISTANT:")),
    "prs-med-tiny": (["<unk>", "<s>", "</s>"], ["<image>"], "<s>", ("USER:", "ASSISTANT:")),
    "brain-llava-tiny": (["<unk>", "<s>", "</s>"], ["<image>"], "<s>", ("USER:", "ASSISTANT:")),
    # nanoVLM's other tokens follow from its config.json.
    "nanovlm-tiny": (["<|endoftext|>", "<|im_start|>", "<|im_end|>"], [], None, ("user\n", "assistant\n")),
    "gemma-3-tiny": (["<pad>", "<eos>", "<bos>", "<unk>"], GEMMA_LAST_TOKENS, "<bos>", ("user\n", "model\n")),
    "gemma-4-tiny": (["<pad>", "<eos>", "<bos>", "<unk>"], GEMMA4_LAST_TOKENS, "<bos>", ("user\n", "model\n", "00:12 ")),
    "qwen2.5-vl-tiny": (["<|endoftext|>"], QWEN_LAST_TOKENS, None, ("system\n", "user\n", "assistant\n", QWEN_SYSTEM)),
    "internvl3-tiny": (["<|endoftext|>"], INTERNVL_LAST_TOKENS, None, ("system\n", "user\n", "assistant\n", "Frame1: ")),
    "internvl3.5-tiny": (["<|endoftext|>"], INTERNVL_LAST_TOKENS, None, ("system\n", "user\n", "assistant\n", "Frame1: ")),
    "qwen3-vl-tiny": (["<|endoftext|>"], QWEN_LAST_TOKENS, None, ("user\n", "assistant\n", "<1.5 seconds>")),
    "qwen3.5-tiny": (["<|endoftext|>"], QWEN_LAST_TOKENS, None, ("user\n", "assistant\n", "<1.5 seconds>")),
}
VICUNA_SYSTEM = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, detailed, and polite "
    "answers to the user's questions."
)

# Weight of each sentence of the shapes; the common English has weight one.
SHAPES_WEIGHT = 10

COMMON_ENGLISH = """
The picture shows a man and a woman in the street. What is shown in this image? There are two people on the left and
one on the right. Describe what you see. It is a small dog that sits next to the door of a house. Which of them is
larger? The sky over the sea was grey, with some light at the end of the day. They would not go there before the water
was clear. He has been here for years, but she will come later than this. Can you read the words on the sign? Yes, it
says that the shop opens at nine. How much does this cost? No one could have known about it at that time. Is the car in
front of the tree or behind it? People who work with their hands often make things that last. Where did all of the
children go? Some went into the garden, others up to the room above. When we look from the side, we see more of the
line. Each part has its own name and number. An answer should be short and true. I think that these are only the first.
"""


def shapes_sentences(roles):
    for form in FORMS:
        yield f"What colour is the {form}?"
        yield f"Where is the {form}?"
        for colour in COLOURS:
            for place in PLACES:
                yield f"{form} {colour} {place},"
    yield "What colour is the shape?"
    yield "What form is the shape?"
    yield "How many shapes are there?"
    yield "Describe the shapes."
    yield from roles


def brain_sentences(roles):
    for side in ("left", "right"):
        for place in ("frontal", "temporal", "parietal", "occipital", "front", "back", "upper", "lower"):
            for kind in ("lesion", "tumour", "bright", "dark"):
                yield f"a {kind} region in the {side} {place} lobe,"
    for modality in ("T1w", "T2w", "FLAIR", "bold"):
        yield f"The modality is {modality}."
    yield "Which modality is this scan?"
    yield "Is there a lesion?"
    yield "Where is the lesion?"
    yield "On which side is the lesion?"
    yield "How large is the lesion? small medium large"
    yield "Are the ventricles enlarged?"
    yield "What has changed between the two scans?"
    yield "The lesion has grown. The lesion has shrunk. It is the same."
    yield "yes no none left right front back top bottom"
    yield from roles


def train_tokenizer(preset):
    first_tokens, last_tokens, first_of_a_text, roles = PRESETS[preset]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=BASE_VOCABULARY,
        special_tokens=[special(token) for token in first_tokens],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    # A question follows an image or "User: " directly.
    if preset == "prs-med-tiny":
        image_words = [*organs_sentences(), *roles]
    elif preset == "brain-llava-tiny":
        image_words = brain_sentences(roles)
    else:
        image_words = shapes_sentences(roles)
    sentences = [space + sentence for sentence in image_words for space in ("", " ")]
    if preset == "llava-tiny":
        sentences.append(VICUNA_SYSTEM)
    tokenizer.train_from_iterator([*SHAPES_WEIGHT * sentences, *COMMON_ENGLISH.split("\n")], trainer)
    tokenizer.add_special_tokens([special(token) for token in last_tokens])
    if preset == "prs-med-tiny":
        # A word of answers that decoding preserves.
        tokenizer.add_tokens([AddedToken("<SEG>", normalized=False, special=False)])
    if first_of_a_text:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{first_of_a_text} $A", special_tokens=[(first_of_a_text, tokenizer.token_to_id(first_of_a_text))]
        )
    return tokenizer


def special(token):
    return AddedToken(token, normalized=False, special=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=PRESETS, default="smolvlm-tiny")
    parser.add_argument("--out", type=Path, metavar="FILE", help="default: tokenizer.json of the preset")
    arguments = parser.parse_args()
    out = arguments.out or Path(__file__).parent.parent / "configs/models" / arguments.preset / "tokenizer.json"
    tokenizer = train_tokenizer(arguments.preset)
    out.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out))
    print(f"{tokenizer.get_vocab_size()} tokens are in {out}")


if __name__ == "__main__":
    main()
