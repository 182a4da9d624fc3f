"""Writes the workload of bench/speed.py: python bench/make_workload.py [--equal-lengths] OUT. The bytes are reproducible.

OUT/checkpoint: a randomly initialized Idefics3 model of 11 million parameters, with a vocabulary of 8,192.
OUT/train.json, OUT/images: conversations on synthetic images. Answer lengths are log-normal (median 110 tokens, clipped to 20..600),
as in instruction data, where padding costs most. With --equal-lengths all images have one size, all questions 16 tokens and
all answers 160, so nothing is padded.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "parity" / "reference" / "library"))

import checkpoints  # noqa: E402
import test_images  # noqa: E402

VOCABULARY = 8192
SHAPE = checkpoints.Shape(
    seed=1, embedding_deviation=0.1, vocabulary_size=VOCABULARY, tokenizer_size=VOCABULARY, tie_embeddings=True,
    hidden_size=320, intermediate_size=896, text_layers=6, heads=5, key_value_heads=1, head_dim=64,
    vision_hidden_size=192, vision_intermediate_size=768, vision_layers=3, vision_heads=3,
    tile_side=128, patch_side=16, longest_edge=256,
)
IMAGES = 32
IMAGE_SIZES = [(256, 192), (320, 160), (200, 260), (120, 120), (300, 100)]
WORDS = 7000
SHORTEST, MEDIAN, LONGEST, SPREAD = 20, 110, 600, 0.9
EQUAL_QUESTION, EQUAL_ANSWER = 16, 160


def make_words(rng):
    """Returns distinct made-up words of one to four syllables, the most frequent first."""
    onsets = "b c d f g h k l m n p r s t v st tr pl gr sh".split()
    vowels = "a e i o u ea ou".split()
    words = {}
    while len(words) < WORDS:
        syllables = rng.integers(1, 5)
        words["".join(rng.choice(onsets) + rng.choice(vowels) for _ in range(syllables))] = None
    return list(words)


def write_text(rng, words, count):
    ranks = np.minimum(rng.zipf(1.2, count) - 1, rng.integers(0, WORDS, count))
    return " ".join(words[rank] for rank in ranks).capitalize()


def make_sample(index, rng, words, image_names):
    answer_words = int(np.clip(rng.lognormal(np.log(MEDIAN), SPREAD), SHORTEST, LONGEST))
    return {
        "id": f"sample-{index:04d}",
        "image": image_names[rng.integers(len(image_names))],
        "conversations": [
            {"from": "human", "value": "<image>\n" + write_text(rng, words, int(rng.integers(5, 20))) + "?"},
            {"from": "gpt", "value": write_text(rng, words, answer_words) + "."},
        ],
    }


def write_tokens(rng, words, tokenizer, tokens):
    """Returns text of exactly that many tokens."""
    count = lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)  # noqa: E731
    text = words[0]
    while (missing := tokens - count(text)) > 0:
        longer = text + " " + write_text(rng, words, 1).lower()
        if count(longer) <= tokens:
            text = longer
        elif missing < 4:
            # Fill up with the shortest frequent word, one token each.
            text += " " + next(word for word in words if count(text + " " + word) == count(text) + 1)
    return text


def make_equal_sample(index, rng, words, image_names, tokenizer):
    question, answer = (write_tokens(rng, words, tokenizer, tokens) for tokens in (EQUAL_QUESTION, EQUAL_ANSWER))
    return {
        "id": f"sample-{index:04d}",
        "image": image_names[rng.integers(len(image_names))],
        "conversations": [{"from": "human", "value": "<image>\n" + question}, {"from": "gpt", "value": answer}],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--equal-lengths", action="store_true")
    arguments = parser.parse_args()

    rng = np.random.default_rng(20)
    words = make_words(rng)
    corpus = [" " + " ".join(words)] + [write_text(rng, words, 200) + "." for _ in range(200)]
    checkpoints.write(SHAPE, arguments.out / "checkpoint", corpus)
    image_names = [f"{index:02d}.{'jpg' if index % 2 else 'png'}" for index in range(IMAGES)]
    for index, name in enumerate(image_names):
        width, height = IMAGE_SIZES[0 if arguments.equal_lengths else index % len(IMAGE_SIZES)]
        test_images.save(test_images.draw(width, height, index), arguments.out / "images" / name)
    if arguments.equal_lengths:
        tokenizer = Tokenizer.from_file(str(arguments.out / "checkpoint" / "tokenizer.json"))
        samples = [make_equal_sample(index, rng, words, image_names, tokenizer) for index in range(arguments.samples)]
    else:
        samples = [make_sample(index, rng, words, image_names) for index in range(arguments.samples)]
    (arguments.out / "train.json").write_text(json.dumps(samples, indent=1) + "\n")


if __name__ == "__main__":
    main()
