"""Writes randomly initialized checkpoints in the layouts that are met in the wild.

`hub` is the layout of the published SmolVLM and Idefics3 checkpoints: rope_theta in the text config, torch_dtype, separate
preprocessor_config.json. `saved` is what save_pretrained of transformers 5 writes: rope_parameters, dtype, the image
processor inside processor_config.json.
"""

from dataclasses import dataclass, field

import torch
from safetensors.torch import save_file
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoModelForImageTextToText,
    AutoProcessor,
    PreTrainedTokenizerFast,
)
from transformers.models.smolvlm.processing_smolvlm import SmolVLMProcessor
from transformers.models.smolvlm.video_processing_smolvlm import SmolVLMVideoProcessor

from library import small_tokenizer
from library.cases import read_json, write_json

CHAT_TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}"
    "{% if message['content'][0]['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
ARCHITECTURES = {"idefics3": "Idefics3ForConditionalGeneration", "smolvlm": "SmolVLMForConditionalGeneration"}
TOKENS = 400
PATCH_SIDE = 8
SCALE_FACTOR = 2


@dataclass
class Shape:
    """What distinguishes one small model from another; see config() for the rest. text: of the text model's config."""

    model_type: str = "idefics3"
    layout: str = "hub"
    seed: int = 0
    text: dict = field(default_factory=dict)
    vocabulary_size: int = TOKENS
    tie_embeddings: bool = False
    tile_side: int = 32
    longest_edge: int = 96
    split_images: bool = True
    chat_template: str = CHAT_TEMPLATE
    chat_template_file: str = "chat_template.jinja"
    omit_defaults: bool = False
    shards: dict[str, str] = field(default_factory=dict)
    video_sampling: dict | None = None

    @property
    def tokens_per_tile(self):
        return (self.tile_side // PATCH_SIDE) ** 2 // SCALE_FACTOR**2


def config(shape, tokenizer):
    """config.json of a hub checkpoint."""
    text = {
        "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "hidden_act": "silu", "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
        "rope_scaling": None, "rope_theta": 100000.0, "attention_bias": False, "mlp_bias": False,
        "pad_token_id": tokenizer.token_to_id("<|im_end|>"), "bos_token_id": tokenizer.token_to_id("<|im_start|>"),
        "eos_token_id": tokenizer.token_to_id("<end_of_utterance>"), "torch_dtype": "float32", "vocab_size": shape.vocabulary_size,
    } | shape.text
    vision = {
        "model_type": f"{shape.model_type}_vision", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_channels": 3, "image_size": shape.tile_side, "patch_size": PATCH_SIDE,
        "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6,
    }
    if shape.omit_defaults:
        as_published(text, vision, shape)
    return {
        "architectures": [ARCHITECTURES[shape.model_type]],
        "model_type": shape.model_type,
        "image_token_id": tokenizer.token_to_id("<image>"),
        "scale_factor": SCALE_FACTOR,
        "tie_word_embeddings": shape.tie_embeddings,
        "torch_dtype": "float32",
        "text_config": text,
        "vision_config": vision,
        "vocab_size": shape.vocabulary_size,
    }


def as_published(text, vision, shape):
    """Published configs omit default values and contain keys of the training code."""
    for key in ("hidden_act", "attention_bias", "mlp_bias"):
        del text[key]
    for key in ("num_channels", "hidden_act", "layer_norm_eps"):
        del vision[key]
    text |= {
        "_flash_attn_2_enabled": True, "is_llama_config": True, "neftune_noise_alpha": 0.0, "pixel_shuffle_factor": SCALE_FACTOR,
        "qk_layer_norms": False, "rope_interleaved": False, "use_resampler": False,
    }
    vision |= {
        "model_type": shape.model_type, "max_image_size": {"longest_edge": shape.tile_side},
        "size": {"longest_edge": shape.longest_edge}, "tie_word_embeddings": False, "torch_dtype": "float32",
    }


def preprocessor_config(shape):
    return {
        "do_convert_rgb": True, "do_image_splitting": shape.split_images, "do_normalize": True, "do_pad": True,
        "do_rescale": True, "do_resize": True, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
        "image_processor_type": "SmolVLMImageProcessor" if shape.model_type == "smolvlm" else "Idefics3ImageProcessor",
        "max_image_size": {"longest_edge": shape.tile_side},
        "processor_class": processor_class(shape),
        "resample": 1,
        "rescale_factor": 1 / 255,
        "size": {"longest_edge": shape.longest_edge},
    } | ({"video_sampling": shape.video_sampling} if shape.video_sampling else {})


def processor_class(shape):
    return "SmolVLMProcessor" if shape.model_type == "smolvlm" else "Idefics3Processor"


def tokenizer_config(shape):
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "processor_class": processor_class(shape),
        "bos_token": "<|im_start|>",
        "eos_token": "<end_of_utterance>",
        "pad_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "additional_special_tokens": ["<fake_token_around_image>", "<image>", "<end_of_utterance>"],
        "clean_up_tokenization_spaces": False,
        "model_max_length": 2048,
    }


def randomise(model, seed):
    """Weights far from the usual start: attention is uneven, and every norm and bias matters."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() >= 2:
                fan_in = parameter[0].numel()
                deviation = 0.3 if "embed" in name else 1.3 / fan_in**0.5
                parameter.copy_(deviation * noise)
            elif name.endswith("bias"):
                parameter.copy_(0.15 * noise)
            else:
                parameter.copy_(1 + 0.2 * noise)


def renamed(name, prefixes):
    for before, after in prefixes.items():
        if name.startswith(before):
            return after + name.removeprefix(before)
    return name


def split_processor_config(folder):
    """Moves the image processor to a file of its own, as published checkpoints have it."""
    content = read_json(folder / "processor_config.json")
    write_json(folder / "preprocessor_config.json", content.pop("image_processor"))
    write_json(folder / "processor_config.json", content)


def save_weights(model, folder, names=(), shards=()):
    """Writes the weights without a tied output layer.

    names: how prefixes of tensor names are replaced. shards: the file for each beginning of a tensor name, longest match wins;
    empty: one file.
    """
    tied = model.config.tie_word_embeddings
    state = {name: value for name, value in model.state_dict().items() if not (tied and name == "lm_head.weight")}
    tensors = {renamed(name, dict(names)): value.contiguous() for name, value in state.items()}
    if not shards:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    place = {name: shards[max((p for p in shards if name.startswith(p)), key=len)] for name in tensors}
    for file in set(place.values()):
        part = {name: value for name, value in tensors.items() if place[name] == file}
        save_file(part, folder / file, metadata={"format": "pt"})
    total = sum(value.numel() * value.element_size() for value in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(place.items()))}
    write_json(folder / "model.safetensors.index.json", index)


def write(shape, folder):
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = small_tokenizer.train(TOKENS)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "config.json", config(shape, tokenizer))
    write_json(folder / "preprocessor_config.json", preprocessor_config(shape))
    write_json(
        folder / "processor_config.json",
        {"image_seq_len": shape.tokens_per_tile, "processor_class": processor_class(shape)},
    )
    write_json(folder / "tokenizer_config.json", tokenizer_config(shape))
    if shape.chat_template_file.endswith(".json"):
        write_json(folder / shape.chat_template_file, {"chat_template": shape.chat_template})
    else:
        (folder / shape.chat_template_file).write_text(shape.chat_template)

    model = AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(folder))
    randomise(model, shape.seed)
    if shape.layout == "saved":
        processor = saved_processor(shape, folder)
        (folder / "preprocessor_config.json").unlink()
        processor.save_pretrained(folder)
        model.config.save_pretrained(folder)
        model.generation_config.save_pretrained(folder)
    save_weights(model, folder, shards=shape.shards)


def make_processor(shape, folder):
    return AutoProcessor.from_pretrained(folder)


def saved_processor(shape, folder):
    if shape.model_type != "smolvlm":
        return make_processor(shape, folder)
    return SmolVLMProcessor(
        image_processor=AutoImageProcessor.from_pretrained(folder),
        tokenizer=PreTrainedTokenizerFast.from_pretrained(folder),
        video_processor=SmolVLMVideoProcessor(),
        image_seq_len=shape.tokens_per_tile,
        chat_template=shape.chat_template,
    )
