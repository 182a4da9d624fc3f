"""Writes randomly initialized checkpoints of text models without a vision tower, a ...ForCausalLM of transformers.

`hub`: keys of transformers 4, as in the published ones; `saved`: what save_pretrained of transformers 5 writes.
"""

import json
from dataclasses import dataclass

from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from library import small_tokenizer
from library.gemma import gemma3_checkpoints
from library.cases import write_json
from library.idefics3_checkpoints import save_weights
from library.llava_checkpoints import QWEN_TOKENS

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL_TOKENS = {
    "chatml": {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
    "gemma": {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"},
}
ARCHITECTURES = {
    "gemma3_text": "Gemma3ForCausalLM", "llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM", "smollm3": "SmolLM3ForCausalLM",
}


@dataclass
class Shape:
    """What distinguishes one small model from another. config: of config.json, model_type included."""

    layout: str
    seed: int
    config: dict
    vocabulary_size: int = 340
    with_template: bool = False

    @property
    def chat_format(self):
        return "gemma" if self.config["model_type"] == "gemma3_text" else "chatml"


def without_tokens(tokenizer, names):
    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] not in names]
    return Tokenizer.from_str(json.dumps(state))


def make_tokenizer(shape):
    """The tokenizers of the vision-language models without their image tokens, which are the last ones."""
    size = shape.vocabulary_size - 10
    if shape.chat_format == "gemma":
        return without_tokens(gemma3_checkpoints.make_tokenizer(size), gemma3_checkpoints.MARKS.values())
    return without_tokens(small_tokenizer.byte_level(size, QWEN_TOKENS), ["<image>"])


def make_processor(shape, folder):
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), **SPECIAL_TOKENS[shape.chat_format])
    if shape.with_template:
        tokenizer.chat_template = CHATML
    return tokenizer


def write(shape, folder):
    folder.mkdir(parents=True)
    make_tokenizer(shape).save(str(folder / "tokenizer.json"))
    tokenizer = make_processor(shape, folder)
    assert len(tokenizer) <= shape.vocabulary_size
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    config = {
        "architectures": [ARCHITECTURES[shape.config["model_type"]]],
        "torch_dtype": "float32",
        "vocab_size": shape.vocabulary_size,
    } | ids | shape.config
    write_json(folder / "config.json", config)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    gemma3_checkpoints.randomise_all(model, shape.seed)
    tokenizer.save_pretrained(folder)
    if shape.layout == "saved":
        model.save_pretrained(folder)
        return
    save_weights(model, folder)
