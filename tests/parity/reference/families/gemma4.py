"""Gemma 4 with a tower (31B) and without (12B). sample.I.pixel_values are float32 [patches, 3, side, side], token by token."""

from library.gemma import gemma4_checkpoints, gemma4_format
from library.cases import BOTH, IMAGES, ONE, TWO, WORDS, Case, sample, with_video
from library.family import Family
from library.gemma.gemma4_checkpoints import Shape


class Model(Family):
    checkpoints, format = gemma4_checkpoints, gemma4_format

    def encode(self, record, turns=None):
        return gemma4_format.encode(
            self.processor, self.shape, record, self.images, turns, is_unified=gemma4_checkpoints.is_unified(self.shape)
        )


# Full attention has fewer and wider heads, whose values are the keys.
TEXT = {
    "attention_k_eq_v": True, "final_logit_softcapping": 4.0, "global_head_dim": 24, "head_dim": 16, "hidden_size": 24,
    "intermediate_size": 20, "max_position_embeddings": 2048, "num_attention_heads": 2, "num_global_key_value_heads": 1,
    "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "use_bidirectional_attention": "vision",
}
VISION = {
    "head_dim": 8, "hidden_size": 24, "intermediate_size": 28, "num_attention_heads": 3, "num_hidden_layers": 2,
    "num_key_value_heads": 3, "patch_size": 2, "pooling_kernel_size": 3, "position_embedding_size": 96,
}
OPENING = with_video(sample("opening", [], "<video>\nWhat has changed?", "The third is darker."), "door")
CASES = [
    Case(
        name="gemma4_tower",
        about="keys of the published checkpoints, tied: clamped Linears, standardized features, a window shorter than the samples; "
        "text only, one image, two images",
        shape=Shape(
            layout="hub", seed=96,
            text=TEXT | {"hidden_size_per_layer_input": 0, "num_hidden_layers": 3, "sliding_window": 40,
                         "layer_types": ["sliding_attention", "full_attention", "full_attention"]},
            vision=VISION | {"use_clipped_linears": True, "standardize": True},
        ),
        images=IMAGES, samples=[WORDS, ONE, TWO], generate="one",
    ),
    Case(
        name="gemma4_unified_video",
        about="files as transformers saves them, untied, without a tower: images see themselves in full attention, too; frames with "
        "time stamps, a video with an image",
        shape=Shape(
            layout="saved", seed=92, model_type="gemma4_unified", tied=False,
            text=TEXT | {"num_hidden_layers": 2, "sliding_window": 90, "layer_types": ["sliding_attention", "full_attention"]},
            vision={"patch_size": 2, "pooling_kernel_size": 2, "mm_embed_dim": 24, "mm_posemb_size": 72, "output_proj_dims": 24},
        ),
        samples=[OPENING, BOTH], generate="opening",
    ),
]
