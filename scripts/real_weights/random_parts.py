"""Random weights: a SigLIP vision tower, and rows of an embedding."""

from dataclasses import dataclass

import numpy as np

# Standard deviation of SigLIP's Linears (initializer_range).
DEVIATION = 0.02
# Noise of new embedding rows around the mean of the others, in standard deviations.
ROW_NOISE = 0.1


@dataclass
class Tower:
    """Sizes of a vision tower, in pixels and features."""

    image_size: int
    patch_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int

    def config(self, model_type):
        return {"model_type": model_type, "attention_dropout": 0.0, "hidden_act": "gelu_pytorch_tanh", "hidden_size": self.hidden_size,
                "image_size": self.image_size, "intermediate_size": self.intermediate_size, "layer_norm_eps": 1e-6,
                "num_attention_heads": self.heads, "num_channels": 3, "num_hidden_layers": self.layers, "patch_size": self.patch_size}

    def tensors(self, prefix, generator):
        """Returns tensors by transformers' names after `prefix`. Biases are 0, weights of norms are 1."""
        result = {}

        def linear(name, rows, columns):
            result[f"{prefix}{name}.weight"] = normal(generator, (rows, columns), DEVIATION)
            result[f"{prefix}{name}.bias"] = np.zeros(rows, np.float32)

        def norm(name):
            result[f"{prefix}{name}.weight"] = np.ones(self.hidden_size, np.float32)
            result[f"{prefix}{name}.bias"] = np.zeros(self.hidden_size, np.float32)

        patch = (self.hidden_size, 3, self.patch_size, self.patch_size)
        result[f"{prefix}embeddings.patch_embedding.weight"] = normal(generator, patch, DEVIATION)
        result[f"{prefix}embeddings.patch_embedding.bias"] = np.zeros(self.hidden_size, np.float32)
        positions = (self.image_size // self.patch_size) ** 2
        result[f"{prefix}embeddings.position_embedding.weight"] = normal(generator, (positions, self.hidden_size), DEVIATION)
        for layer in range(self.layers):
            block = f"encoder.layers.{layer}."
            for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
                linear(f"{block}self_attn.{name}", self.hidden_size, self.hidden_size)
            linear(block + "mlp.fc1", self.intermediate_size, self.hidden_size)
            linear(block + "mlp.fc2", self.hidden_size, self.intermediate_size)
            norm(block + "layer_norm1")
            norm(block + "layer_norm2")
        norm("post_layernorm")
        return result


def normal(generator, shape, deviation):
    return generator.standard_normal(shape, dtype=np.float32) * np.float32(deviation)


def root_mean_square(values):
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float64))))


def with_more_rows(embedding, rows, generator):
    """Returns the embedding extended to the given number of rows: new rows are the mean of the others plus noise."""
    more = (rows - embedding.shape[0], embedding.shape[1])
    noise = normal(generator, more, ROW_NOISE) * embedding.std(axis=0)
    return np.concatenate([embedding, embedding.mean(axis=0) + noise])
