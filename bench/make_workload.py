"""Writes the workload of bench/speed.py: python bench/make_workload.py [--model NAME] [--equal-lengths] OUT.

The bytes are reproducible. OUT/checkpoint: a randomly initialized model with a vocabulary of 8,192 in the form of a preset.
idefics3 has 11 million parameters, qwen3_5 40 million in six gated delta nets and two layers of attention.
OUT/train.json, OUT/images: conversations on synthetic images. Answer lengths are log-normal (median 110 tokens, clipped to 20..600),
as in instruction data, where padding costs most. With --equal-lengths all images have one size, all questions 16 tokens and
all answers 160, so nothing is padded.
"""

import argparse
import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForImageTextToText

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "parity" / "reference"))

from library import test_images  # noqa: E402
from library.idefics3_checkpoints import save_weights  # noqa: E402

PRESETS = ROOT / "configs" / "models"
VOCABULARY = 8192


@dataclass
class Model:
    """changes: of the preset's files, by name. chat_template_of: the preset whose chat template applies."""

    preset: str
    chat_template_of: str
    changes: dict[str, dict]


MODELS = {
    "idefics3": Model(
        "smolvlm-tiny", "smolvlm-tiny",
        {
            "config.json": {
                "scale_factor": 2,
                "text_config": {
                    "head_dim": 64, "hidden_size": 320, "intermediate_size": 896, "max_position_embeddings": 2048,
                    "num_attention_heads": 5, "num_hidden_layers": 6, "num_key_value_heads": 1, "vocab_size": VOCABULARY,
                },
                "vision_config": {
                    "hidden_size": 192, "image_size": 128, "intermediate_size": 768, "num_attention_heads": 3,
                    "num_hidden_layers": 3, "patch_size": 16,
                },
            },
            "preprocessor_config.json": {
                "do_image_splitting": True, "max_image_size": {"longest_edge": 128}, "size": {"longest_edge": 256},
            },
            "processor_config.json": {"image_seq_len": 16},
        },
    ),
    # The templates of Qwen3.5 write thoughts, whose label tokens differ from the peer's. ChatML has none.
    "qwen3_5": Model(
        "qwen3.5-tiny", "qwen3-vl-tiny",
        {
            "config.json": {
                "text_config": {
                    "head_dim": 128, "hidden_size": 512, "intermediate_size": 1536,
                    "layer_types": 2 * (3 * ["linear_attention"] + ["full_attention"]), "linear_key_head_dim": 128,
                    "linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_value_head_dim": 128,
                    "num_attention_heads": 4, "num_hidden_layers": 8, "num_key_value_heads": 2,
                    "rope_parameters": {"mrope_section": [6, 5, 5]}, "vocab_size": VOCABULARY,
                },
                "vision_config": {
                    "depth": 3, "hidden_size": 192, "intermediate_size": 768, "num_heads": 3, "num_position_embeddings": 256,
                    "out_hidden_size": 512,
                },
            },
        },
    ),
}
IMAGES = 32
IMAGE_SIZES = [(256, 192), (320, 160), (200, 260), (120, 120), (300, 100)]
WORDS = 7000
SHORTEST, MEDIAN, LONGEST, SPREAD = 20, 110, 600, 0.9
EQUAL_QUESTION, EQUAL_ANSWER = 16, 160


def merged(content, changes):
    """Returns the content with changes, section by section."""
    sections = {key: merged(content[key], value) for key, value in changes.items() if isinstance(value, dict)}
    return content | changes | sections


def with_token_ids(content, before, after):
    """Returns the content of a JSON file with the ids of the same tokens in another tokenizer."""
    if not isinstance(content, dict):
        return content
    return {
        key: after.token_to_id(before.id_to_token(value)) if key.endswith("token_id") and value is not None
        else with_token_ids(value, before, after)
        for key, value in content.items()
    }


def train_tokenizer(preset, corpus):
    """Returns the tokenizer of the preset, and one of VOCABULARY entries with the same added tokens at the end."""
    added = [token["content"] for token in json.loads((preset / "tokenizer.json").read_text())["added_tokens"]]
    before = Tokenizer.from_file(str(preset / "tokenizer.json"))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = before.pre_tokenizer, before.decoder
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(added), min_frequency=1, show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_special_tokens(added)
    assert tokenizer.get_vocab_size() == VOCABULARY, "the corpus is too small for this vocabulary"
    return before, tokenizer


def write_checkpoint(model, folder, corpus):
    preset = PRESETS / model.preset
    shutil.copytree(preset, folder)
    shutil.copy(PRESETS / model.chat_template_of / "chat_template.jinja", folder)
    before, tokenizer = train_tokenizer(preset, corpus)
    tokenizer.save(str(folder / "tokenizer.json"))
    for file in folder.glob("*.json"):
        if file.name != "tokenizer.json":
            content = merged(json.loads(file.read_text()), model.changes.get(file.name, {}))
            file.write_text(json.dumps(with_token_ids(content, before, tokenizer), indent=2) + "\n")
    torch.manual_seed(1)
    save_weights(AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32), folder)


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
    parser.add_argument("--model", choices=MODELS, default="idefics3")
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--equal-lengths", action="store_true")
    arguments = parser.parse_args()

    rng = np.random.default_rng(20)
    words = make_words(rng)
    corpus = [" " + " ".join(words)] + [write_text(rng, words, 200) + "." for _ in range(200)]
    write_checkpoint(MODELS[arguments.model], arguments.out / "checkpoint", corpus)
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
