"""Writes randomly initialized Gemma 4 checkpoints as transformers saves them, or with the keys of the published ones.

`saved`: what save_pretrained writes; `hub`: config.json has global_head_dim and num_global_key_value_heads instead of
per_layer_config, and the image processor is a file of its own.
"""

from dataclasses import dataclass, field

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    Gemma4AudioFeatureExtractor,
    Gemma4ForConditionalGeneration,
    Gemma4ImageProcessor,
    Gemma4Processor,
    Gemma4UnifiedAudioFeatureExtractor,
    Gemma4UnifiedForConditionalGeneration,
    Gemma4UnifiedImageProcessor,
    Gemma4UnifiedProcessor,
    Gemma4UnifiedVideoProcessor,
    Gemma4VideoProcessor,
    PreTrainedTokenizerFast,
)

from library.gemma import gemma3_checkpoints
from library.cases import read_json, write_json
from library.idefics3_checkpoints import randomise, split_processor_config

MARKS = {"boi_token": "<|image>", "eoi_token": "<image|>", "image_token": "<|image|>"}
AUDIO = {"boa_token": "<|audio>", "eoa_token": "<audio|>", "audio_token": "<|audio|>"}
VIDEO = "<|video|>"
TURNS = ["<|turn>", "<turn|>"]


@dataclass
class Shape:
    """What distinguishes one small model from another. tokens, frame_tokens: max_soft_tokens of images and frames."""

    layout: str
    seed: int
    text: dict
    vision: dict
    model_type: str = "gemma4"
    audio: dict | None = None
    tokens: int = 70
    frame_tokens: int = 70
    tied: bool = True
    extra: dict = field(default_factory=dict)
    vocabulary_size: int = 480


def is_unified(shape):
    return shape.model_type == "gemma4_unified"


def make_tokenizer(size):
    """Gemma 3's with the marks of Gemma 4."""
    tokenizer = gemma3_checkpoints.make_tokenizer(size)
    tokenizer.add_special_tokens([*TURNS, *MARKS.values(), *AUDIO.values(), VIDEO])
    return tokenizer


def config(shape, tokenizer):
    ids = {name: tokenizer.token_to_id(mark) for name, mark in (
        ("boi_token_id", MARKS["boi_token"]), ("eoi_token_id", MARKS["eoi_token"]), ("image_token_id", MARKS["image_token"]),
        ("video_token_id", VIDEO), ("boa_token_id", AUDIO["boa_token"]), ("eoa_token_index", AUDIO["eoa_token"]),
        ("audio_token_id", AUDIO["audio_token"]),
    )}
    prefix = shape.model_type
    return {
        "architectures": [("Gemma4Unified" if is_unified(shape) else "Gemma4") + "ForConditionalGeneration"],
        "model_type": prefix,
        "tie_word_embeddings": shape.tied,
        "eos_token_id": [1, tokenizer.token_to_id("<turn|>")],
        "dtype": "float32",
        "audio_config": shape.audio and {"model_type": f"{prefix}_audio"} | shape.audio,
        "text_config": {"model_type": f"{prefix}_text", "vocab_size": shape.vocabulary_size, "pad_token_id": 0,
                        "tie_word_embeddings": shape.tied} | shape.text,
        "vision_config": {"model_type": f"{prefix}_vision"} | shape.vision,
    } | ids


def make_processor(shape, folder):
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), bos_token="<bos>", eos_token="<eos>", pad_token="<pad>",
        unk_token="<unk>", extra_special_tokens=MARKS | AUDIO,
    )
    patches = {"patch_size": shape.vision["patch_size"], "pooling_kernel_size": shape.vision["pooling_kernel_size"]}
    kinds = (
        (Gemma4UnifiedProcessor, Gemma4UnifiedImageProcessor, Gemma4UnifiedVideoProcessor, Gemma4UnifiedAudioFeatureExtractor)
        if is_unified(shape) else (Gemma4Processor, Gemma4ImageProcessor, Gemma4VideoProcessor, Gemma4AudioFeatureExtractor)
    )
    return kinds[0](
        feature_extractor=kinds[3](),
        image_processor=kinds[1](max_soft_tokens=shape.tokens, **patches),
        tokenizer=tokenizer,
        video_processor=kinds[2](max_soft_tokens=shape.frame_tokens, num_frames=3, do_normalize=False, **patches),
        image_seq_length=shape.tokens,
    )


def soften(model):
    """Attention scores are not divided by the root of the head's size, and gates of per-layer inputs read states without a norm.
    With large weights, attention would be sharp and gates saturated, and gradients ill-conditioned."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("q_norm.weight"):
                parameter *= 0.4
            elif name.endswith("per_layer_input_gate.weight"):
                parameter *= 0.1


def randomise_buffers(model, seed):
    """Scalars of blocks, ranges that clamp some values, and the shift and scale of features."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(low, high):
        return low + (high - low) * torch.rand((), generator=generator)

    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name.endswith("layer_scalar"):
                buffer.fill_(uniform(0.7, 1.2))
            elif name.endswith(("_min", "_max")):
                buffer.fill_(uniform(1, 3) * (-1 if name.endswith("_min") else 1))
            elif name.endswith(("std_bias", "std_scale")):
                buffer.copy_(1 + 0.2 * torch.randn(buffer.shape, generator=generator))


def as_published(content):
    """Returns config.json with the keys of the published files."""
    text = content["text_config"]
    overrides = text.pop("per_layer_config", {})
    if overrides:
        heads = next(iter(overrides.values()))
        text["global_head_dim"] = heads["head_dim"]
        text["num_global_key_value_heads"] = heads.get("num_key_value_heads")
    return content


def add_unread_keys(folder):
    """Adds the keys and values that published files have in blocks that read those of another block."""
    path = folder / "model.safetensors"
    tensors, text = load_file(path), read_json(folder / "config.json")["text_config"]
    count, shared = text["num_hidden_layers"], text["num_kv_shared_layers"]
    names = ("k_norm.weight", "k_proj.weight", "v_proj.weight")
    for block in range(count - shared, count):
        # The first blocks of each type have the shapes.
        source = text["layer_types"].index(text["layer_types"][block])
        for name in names:
            prefix = "model.language_model.layers"
            tensors[f"{prefix}.{block}.self_attn.{name}"] = tensors[f"{prefix}.{source}.self_attn.{name}"].clone()
    save_file(tensors, path, {"format": "pt"})


def write(shape, folder):
    folder.mkdir(parents=True)
    tokenizer = make_tokenizer(shape.vocabulary_size - 20)
    tokenizer.save(str(folder / "tokenizer.json"))
    assert tokenizer.get_vocab_size() <= shape.vocabulary_size
    write_json(folder / "config.json", config(shape, tokenizer))
    kind = Gemma4UnifiedForConditionalGeneration if is_unified(shape) else Gemma4ForConditionalGeneration
    model = kind(AutoConfig.from_pretrained(folder))
    randomise(model, shape.seed)
    soften(model)
    randomise_buffers(model, shape.seed)
    make_processor(shape, folder).save_pretrained(folder)
    model.save_pretrained(folder)
    if shape.layout == "hub":
        write_json(folder / "config.json", as_published(read_json(folder / "config.json")))
        split_processor_config(folder)
        if shape.text.get("num_kv_shared_layers"):
            add_unread_keys(folder)
