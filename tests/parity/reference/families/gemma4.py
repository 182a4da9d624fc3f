"""Gemma 4 with a tower (31B; E2B and E4B) and without (12B). sample.I.pixel_values are float32 [patches, 3, side, side], token by token."""

import torch

from library.gemma import gemma4_checkpoints, gemma4_format
from library.cases import BOTH, IMAGES, ONE, TWO, WORDS, Case, sample, with_video
from library.family import Family
from library.gemma.gemma4_checkpoints import Shape


class Model(Family):
    checkpoints, format = gemma4_checkpoints, gemma4_format

    def load(self, dtype=torch.float32, attention="sdpa"):
        # The audio tower, which no sample uses, supports no other attention.
        attention = {"text_config": attention, "vision_config": attention, "audio_config": "eager"} if self.shape.audio else attention
        return super().load(dtype, attention)

    def encode(self, record, turns=None):
        return gemma4_format.encode(
            self.processor, self.shape, record, self.images, turns, is_unified=gemma4_checkpoints.is_unified(self.shape)
        )


# Full attention has fewer and wider heads, whose values are the keys.
TEXT = {
    "attention_k_eq_v": True, "final_logit_softcapping": 4.0, "global_head_dim": 16, "head_dim": 8, "hidden_size": 20,
    "intermediate_size": 14, "max_position_embeddings": 2048, "num_attention_heads": 2, "num_global_key_value_heads": 1,
    "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "use_bidirectional_attention": "vision",
}
VISION = {
    "head_dim": 8, "hidden_size": 16, "intermediate_size": 20, "num_attention_heads": 2, "num_hidden_layers": 2,
    "num_key_value_heads": 2, "patch_size": 2, "pooling_kernel_size": 3, "position_embedding_size": 96,
}
OPENING = with_video(sample("opening", [], "<video>\nWhat has changed?", "The third is darker."), "door")
CASES = [
    Case(
        name="gemma4_tower",
        about="keys of the published checkpoints, tied: clamped Linears, standardized features, a window shorter than the samples; "
        "text only, two images",
        shape=Shape(
            layout="hub", seed=94,
            text=TEXT | {"hidden_size_per_layer_input": 0, "num_hidden_layers": 3, "sliding_window": 40,
                         "layer_types": ["sliding_attention", "full_attention", "full_attention"]},
            vision=VISION | {"use_clipped_linears": True, "standardize": True},
        ),
        images=IMAGES, samples=[WORDS, TWO], generate="two",
    ),
    Case(
        name="gemma4_per_layer",
        about="as E2B: per-layer embeddings, the last blocks read the keys and values of earlier ones and have wider MLPs; files "
        "with these keys and values and with audio; text only, one image",
        shape=Shape(
            layout="hub", vocabulary_size=400, seed=105,
            text=TEXT | {"attention_k_eq_v": False, "num_global_key_value_heads": None, "num_key_value_heads": 1,
                         "use_bidirectional_attention": None, "hidden_size_per_layer_input": 6,
                         "vocab_size_per_layer_input": 400, "num_hidden_layers": 5, "num_kv_shared_layers": 2,
                         "sliding_window": 40, "use_double_wide_mlp": True,
                         "layer_types": ["sliding_attention"] * 2 + ["full_attention", "sliding_attention", "full_attention"]},
            vision=VISION | {"hidden_size": 8, "intermediate_size": 10, "num_attention_heads": 1, "num_hidden_layers": 1,
                             "num_key_value_heads": 1, "use_clipped_linears": True},
            audio={"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "output_proj_dims": 8,
                   "subsampling_conv_channels": [4, 4]},
        ),
        images=IMAGES, samples=[WORDS, ONE], generate="one",
    ),
    Case(
        name="gemma4_unified_video",
        about="files as transformers saves them, untied, without a tower: images see themselves in full attention, too; frames with "
        "time stamps, a video with an image",
        shape=Shape(
            layout="saved", seed=96, model_type="gemma4_unified", tied=False,
            text=TEXT | {"num_hidden_layers": 2, "sliding_window": 90, "layer_types": ["sliding_attention", "full_attention"]},
            vision={"patch_size": 2, "pooling_kernel_size": 2, "mm_embed_dim": 20, "mm_posemb_size": 72, "output_proj_dims": 20},
        ),
        samples=[OPENING, BOTH], generate="opening",
    ),
]
