"""LLaVA. Tensors have the names of transformers' modules, or LLaVA's own in the original layout.

In the original layout the vision tower lies in tower/, and input_ids are 0 where an image feature goes.
"""

import tempfile
from pathlib import Path

import torch

from library import llava_checkpoints, llava_format, training
from library.cases import ONE, TWO, WORDS, Case
from library.family import Family
from library.llava_checkpoints import Shape


class Model(Family):
    checkpoints, format = llava_checkpoints, llava_format
    has_normalization = True

    def __init__(self, case, folder):
        super().__init__(case, folder)
        self.is_original = self.shape.layout == "original"

    def load(self, dtype=torch.float32, attention="sdpa"):
        if not self.is_original:
            return super().load(dtype, attention)
        with tempfile.TemporaryDirectory() as scratch:
            fresh, loadable = Path(scratch) / "checkpoint", Path(scratch) / "loadable"
            llava_checkpoints.write(self.shape, fresh, loadable)
            weights = [folder / "model.safetensors" for folder in (self.checkpoint, fresh)]
            assert weights[0].read_bytes() == weights[1].read_bytes(), f"{self.checkpoint} has other weights than are drawn here"
            return training.load(loadable, dtype, attention)

    def own_names(self, tensors):
        return {llava_checkpoints.own_names(self.shape, name): value for name, value in tensors.items()}

    def stored_ids(self, ids):
        return ids.masked_fill(ids == llava_format.find_image_id(self.processor, self.shape), 0) if self.is_original else ids


CLIP = {
    "model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3,
    "num_attention_heads": 4, "image_size": 40, "patch_size": 8, "projection_dim": 16,
}
SIGLIP = {
    "model_type": "siglip_vision_model", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 2, "image_size": 38, "patch_size": 9,
}
TEXT = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 2048,
}
CASES = [
    Case(
        name="llava_clip_llama",
        about="names and files of llava-hf's checkpoints: CLIP, feature layer -2, centre crop, Llama; mixed batch",
        shape=Shape(layout="hub", seed=21, text={"model_type": "llama"} | TEXT, vision=CLIP),
        samples=[ONE, TWO, WORDS], generate="two",
    ),
    Case(
        name="llava_siglip_qwen2",
        about="files as transformers 5 saves them: SigLIP with its head, all features of the last block, Qwen2 with tied embeddings, "
        "grouped queries and YaRN",
        shape=Shape(
            layout="saved", seed=22, tokenizer="qwen", vocabulary_size=420, image_processor="siglip",
            text={"model_type": "qwen2", "num_key_value_heads": 2, "tie_word_embeddings": True, "rope_theta": 1000000.0,
                  "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}} | TEXT,
            vision=SIGLIP,
            llava={"vision_feature_layer": -1, "vision_feature_select_strategy": "full", "tie_word_embeddings": True},
        ),
        samples=[TWO, ONE], generate="one",
    ),
    Case(
        name="llava_clip_mistral",
        about="names of transformers 4.52: CLIP with gelu and its class token, padded to a square, a projector of its own kind, "
        "Mistral with a sliding window shorter than the samples, heads of their own size and linear rope scaling",
        shape=Shape(
            layout="modules", seed=23, image_processor="llava", pad_to_square=True,
            text={"model_type": "mistral", "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 24,
                  "rope_scaling": {"type": "linear", "factor": 2.0}} | TEXT,
            vision=CLIP | {"hidden_act": "gelu"},
            llava={"vision_feature_layer": 2, "vision_feature_select_strategy": "full",
                   "projector_hidden_act": "gelu_pytorch_tanh", "multimodal_projector_bias": False},
        ),
        samples=[ONE, WORDS, TWO], generate="one",
    ),
    Case(
        name="llava_original",
        about="LLaVA's own names and keys, its vision tower elsewhere, padded to a square, Llama with grouped queries, biases and the "
        "rope scaling of Llama 3.1",
        shape=Shape(
            layout="original", seed=24, image_processor="llava", pad_to_square=True,
            text={"model_type": "llama", "num_key_value_heads": 1, "attention_bias": True, "rope_theta": 500000.0,
                  "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                   "original_max_position_embeddings": 64}} | TEXT,
            vision=CLIP,
        ),
        samples=[TWO, ONE, WORDS], generate="two",
    ),
]
