"""models/data/rope.json: the rotary frequencies that transformers computes for some configs."""

from copy import deepcopy

from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from library.cases import write_json

HEADS = {"hidden_size": 512, "num_attention_heads": 8}
CONFIGS = {
    "default": {"rope_theta": 10000.0},
    "linear": {"rope_theta": 10000.0, "rope_scaling": {"type": "linear", "factor": 4.0}},
    "llama_3_1": {
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
    "yarn_in_rope_parameters": {
        "max_position_embeddings": 131072,
        "rope_parameters": {
            "rope_theta": 1000000.0, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768,
        },
    },
    "yarn_of_max_position_embeddings": {
        "max_position_embeddings": 4096,
        "rope_theta": 10000.0,
        "rope_scaling": {"type": "yarn", "factor": 16.0, "beta_fast": 24, "beta_slow": 2, "truncate": False},
    },
    "yarn_with_mscale": {
        "max_position_embeddings": 4096,
        "rope_theta": 10000.0,
        "rope_scaling": {"rope_type": "yarn", "factor": 40.0, "mscale": 0.7, "mscale_all_dim": 1.1},
    },
    "yarn_with_attention_factor": {
        "max_position_embeddings": 4096,
        "rope_theta": 10000.0,
        "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "attention_factor": 1.25},
    },
}


def make(tests):
    cases = []
    for name, config in CONFIGS.items():
        rotary = LlamaRotaryEmbedding(LlamaConfig(**HEADS, **deepcopy(config)))
        cases.append({
            "name": name, "config": config, "head_dim": 64, "scale": rotary.attention_scaling,
            "frequencies": [float(value) for value in rotary.inv_freq],
        })
    write_json(tests / "models" / "data" / "rope.json", cases, indent=1)
