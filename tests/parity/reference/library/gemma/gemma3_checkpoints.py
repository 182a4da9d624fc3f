"""Writes randomly initialized Gemma 3 checkpoints in the layouts that are met in the wild.

`hub`: the published ones (weights `language_model.model…`, keys of transformers 4, an image processor in a file of its own);
`modules`: weights by the names of transformers 5's modules; `saved`: what save_pretrained of transformers 5 writes from scratch.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoConfig, Gemma3ForConditionalGeneration, Gemma3ImageProcessor, Gemma3Processor, PreTrainedTokenizerFast

from library.cases import write_json
from library.idefics3_checkpoints import randomise, save_weights, split_processor_config
from library.small_tokenizer import CORPUS

PUBLISHED_NAMES = {
    "model.vision_tower.": "vision_tower.vision_model.",
    "model.multi_modal_projector.": "multi_modal_projector.",
    "model.language_model.": "language_model.model.",
    "lm_head.": "language_model.lm_head.",
}
FIRST_TOKENS = ["<pad>", "<eos>", "<bos>", "<unk>"]
MARKS = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}


@dataclass
class Shape:
    """What distinguishes one small model from another. images: settings of the image processor; crops: of pan and scan."""

    layout: str
    seed: int
    text: dict
    vision: dict
    tokens_per_image: int
    tied: bool = True
    crops: dict = field(default_factory=dict)
    with_template: bool = False
    vocabulary_size: int = 470


def make_tokenizer(size):
    """As Gemma's tokenizer.json: SentencePiece's spaces, bytes for unknown characters, blank lines that are a token, <bos> first."""
    tokens = FIRST_TOKENS + [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=tokens, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["id"] < len(FIRST_TOKENS)]
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_tokens([AddedToken("\n" * count, normalized=False) for count in (2, 3)])
    tokenizer.add_special_tokens(["<start_of_turn>", "<end_of_turn>", *MARKS.values()])
    return tokenizer


def config(shape, tokenizer):
    ids = {
        f"{name}_token_index": tokenizer.token_to_id(MARKS[f"{name}_token"]) for name in ("boi", "eoi", "image")
    }
    return {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "mm_tokens_per_image": shape.tokens_per_image,
        "tie_word_embeddings": shape.tied,
        "eos_token_id": [1, tokenizer.token_to_id("<end_of_turn>")],
        "torch_dtype": "float32",
        "text_config": {"model_type": "gemma3_text", "vocab_size": shape.vocabulary_size, "tie_word_embeddings": shape.tied}
        | shape.text,
        "vision_config": {"model_type": "siglip_vision_model", "vision_use_head": False} | shape.vision,
    } | ids


def chat_template():
    table = Path(__file__).resolve().parents[5] / "configs" / "chat_templates" / "gemma3.jinja"
    return table.read_text().replace("'<image>'", "'<start_of_image>'")


def make_processor(shape, folder):
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), bos_token="<bos>", eos_token="<eos>", pad_token="<pad>",
        unk_token="<unk>", extra_special_tokens=MARKS,
    )
    side = shape.vision["image_size"]
    return Gemma3Processor(
        image_processor=Gemma3ImageProcessor(
            size={"height": side, "width": side}, image_mean=[0.5] * 3, image_std=[0.5] * 3, **shape.crops
        ),
        tokenizer=tokenizer,
        image_seq_length=shape.tokens_per_image,
        chat_template=chat_template() if shape.with_template else None,
    )


def randomise_all(model, seed):
    """Weights of norms are distances from 1."""
    randomise(model, seed)
    with torch.no_grad():
        for name, module in model.named_modules():
            if type(module).__name__ == "Gemma3RMSNorm":
                module.weight -= 1


def write(shape, folder):
    folder.mkdir(parents=True)
    tokenizer = make_tokenizer(shape.vocabulary_size - 10)
    tokenizer.save(str(folder / "tokenizer.json"))
    assert tokenizer.get_vocab_size() <= shape.vocabulary_size
    write_json(folder / "config.json", config(shape, tokenizer))
    model = Gemma3ForConditionalGeneration(AutoConfig.from_pretrained(folder))
    randomise_all(model, shape.seed)
    make_processor(shape, folder).save_pretrained(folder)
    if shape.layout == "saved":
        model.save_pretrained(folder)
        return
    split_processor_config(folder)
    save_weights(model, folder, PUBLISHED_NAMES if shape.layout == "hub" else {})
