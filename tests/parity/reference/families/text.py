"""Text models."""

from library import text_checkpoints, text_format
from library.cases import WORDS, Case, sample
from library.family import Family
from library.text_checkpoints import Shape


class Model(Family):
    checkpoints, format = text_checkpoints, text_format


TEXT = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-6,
}
TURNS = sample(
    "turns", [], "Which colour is the ball?", "It is red. It isn't on the table!", "How many images are there?", "42",
)
SHORT = sample("short", [], "What has changed?", "The heart is enlarged.")

CASES = [
    Case(
        name="qwen3_text",
        about="files as transformers 5 saves them, with a chat template of strings, tied: heads of another size than hidden_size / "
        "num_attention_heads",
        shape=Shape(
            layout="saved", seed=91, with_template=True,
            config={"model_type": "qwen3", "head_dim": 16, "rope_theta": 1000000.0, "tie_word_embeddings": True} | TEXT,
        ),
        samples=[WORDS, TURNS, SHORT], generate="turns",
    ),
    Case(
        name="llama_text",
        about="keys of the published checkpoints, without a chat template, untied: biases, the rope scaling of Llama 3.1",
        shape=Shape(
            layout="hub", seed=92,
            config={"model_type": "llama", "attention_bias": True, "mlp_bias": True, "rope_theta": 500000.0,
                    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                     "original_max_position_embeddings": 64},
                    "tie_word_embeddings": False} | TEXT,
        ),
        samples=[TURNS, SHORT, WORDS], generate="words",
    ),
    Case(
        name="gemma3_text",
        about="keys of the published checkpoints, without a chat template, tied without the key: a window shorter than the samples in "
        "every block but the third",
        shape=Shape(
            layout="hub", seed=93,
            config=TEXT | {"model_type": "gemma3_text", "head_dim": 16, "num_hidden_layers": 3, "num_key_value_heads": 1,
                           "query_pre_attn_scalar": 21, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0,
                           "sliding_window": 7, "sliding_window_pattern": 3},
        ),
        samples=[SHORT, TURNS, WORDS], generate="short",
    ),
    Case(
        name="smollm3_text",
        about="keys of the published checkpoints, without a chat template, tied without the key: every other block without rope",
        shape=Shape(
            layout="hub", seed=94,
            config=TEXT | {"model_type": "smollm3", "no_rope_layers": [1, 0, 1], "num_hidden_layers": 3, "rope_theta": 5000000.0,
                           "num_key_value_heads": 1, "use_sliding_window": False},
        ),
        samples=[WORDS, TURNS], generate="words",
    ),
]
