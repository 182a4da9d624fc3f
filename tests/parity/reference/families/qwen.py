"""Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5. expected.safetensors has patches and positions:

    sample.I.pixel_values   float32 [patches, 3, frames · side, side]: the frames of a patch one above the other
    sample.I.position_ids   int64 [3, tokens]
"""

from library import qwen_checkpoints, qwen_format
from library.cases import BOTH, MOVING, ONE, THREE, TWO, WORDS, Case
from library.family import Family
from library.qwen_checkpoints import Shape


class Model(Family):
    checkpoints, format = qwen_checkpoints, qwen_format
    has_normalization = True

    def open(self):
        self.model = self.load()
        return super().open()

    def encode(self, record, turns=None):
        return qwen_format.encode(self.processor, self.shape, record, self.images, turns, model=self.model)

    def patched(self):
        return qwen_format.video_layout(self.shape.video_layout)

    def more_tensors(self, samples):
        return {f"sample.{index}.position_ids": sample.position_ids for index, sample in enumerate(samples)}

    def describe(self, samples, single, deviation):
        return super().describe(samples, single, deviation) | {"video_layout": self.shape.video_layout}


VISION_2_5 = {
    "depth": 3, "hidden_act": "silu", "hidden_size": 32, "intermediate_size": 44, "num_heads": 2, "in_chans": 3,
    "out_hidden_size": 32, "patch_size": 4, "spatial_merge_size": 2, "spatial_patch_size": 4, "window_size": 16,
    "fullatt_block_indexes": [1], "tokens_per_second": 2, "temporal_patch_size": 2,
}
VISION_2 = {
    "depth": 2, "embed_dim": 32, "hidden_size": 32, "hidden_act": "quick_gelu", "mlp_ratio": 2, "num_heads": 2, "in_channels": 3,
    "in_chans": 3, "patch_size": 4, "spatial_merge_size": 2, "spatial_patch_size": 4, "temporal_patch_size": 2,
}
TEXT = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
    "rms_norm_eps": 1e-6, "max_position_embeddings": 2048, "use_sliding_window": False, "sliding_window": 32768,
    "max_window_layers": 2, "hidden_act": "silu", "attention_dropout": 0.0, "rope_theta": 1000000.0,
    "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}, "tie_word_embeddings": False,
}
VISION_3 = {
    "depth": 4, "deepstack_visual_indexes": [0, 2], "hidden_act": "gelu_pytorch_tanh", "hidden_size": 32, "in_channels": 3,
    "intermediate_size": 44, "num_heads": 2, "num_position_embeddings": 36, "out_hidden_size": 32, "patch_size": 4,
    "spatial_merge_size": 2, "temporal_patch_size": 2,
}
# Heads of another size than hidden_size / num_attention_heads.
TEXT_3 = {
    "attention_bias": False, "attention_dropout": 0.0, "head_dim": 24, "hidden_act": "silu", "hidden_size": 32,
    "intermediate_size": 64, "max_position_embeddings": 2048, "num_attention_heads": 2, "num_hidden_layers": 3,
    "num_key_value_heads": 1, "rms_norm_eps": 1e-6, "rope_theta": 5000000.0,
    "rope_scaling": {"mrope_interleaved": True, "mrope_section": [5, 4, 3], "rope_type": "default"}, "tie_word_embeddings": False,
}
VISION_3_5 = {
    "depth": 2, "deepstack_visual_indexes": [], "hidden_act": "gelu_pytorch_tanh", "hidden_size": 16, "in_channels": 3,
    "intermediate_size": 24, "model_type": "qwen3_5", "num_heads": 2, "num_position_embeddings": 36, "out_hidden_size": 24,
    "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2,
}
# More value heads than key heads, of another size; 8 of 16 features of a head rotate.
TEXT_3_5 = {
    "attention_bias": False, "attention_dropout": 0.0, "attn_output_gate": True, "full_attention_interval": 3, "head_dim": 16,
    "hidden_act": "silu", "hidden_size": 24, "intermediate_size": 20, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 16,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_value_head_dim": 12, "mamba_ssm_dtype": "float32",
    "max_position_embeddings": 2048, "mlp_only_layers": [], "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False,
    "num_attention_heads": 2, "num_hidden_layers": 3, "num_key_value_heads": 1, "rms_norm_eps": 1e-6,
    "rope_parameters": {"mrope_interleaved": True, "mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5, "rope_theta": 1e7,
                        "rope_type": "default"},
    "tie_word_embeddings": False,
}
CASES = [
    Case(
        name="qwen3_5_images",
        about="names and files of the published checkpoints, untied, with weights of multi-token prediction: text only, two images; "
        "two gated delta nets before the attention",
        shape=Shape(model_type="qwen3_5", layout="modules", seed=61, text=TEXT_3_5, vision=VISION_3_5, mtp=True),
        samples=[WORDS, TWO], generate="two",
    ),
    Case(
        name="qwen3_5_video",
        about="files as transformers 5 saves them, tied, with biases of the attention: videos, one of them with an image, of which "
        "the longer is sampled; as many key heads as value heads, a convolution of 3 rows, the attention first",
        shape=Shape(
            model_type="qwen3_5", layout="saved", seed=62,
            text=TEXT_3_5 | {
                "attention_bias": True, "layer_types": ["full_attention", "linear_attention"],
                "linear_conv_kernel_dim": 3, "linear_num_key_heads": 2, "linear_num_value_heads": 2, "num_hidden_layers": 2,
                "num_key_value_heads": 2, "tie_word_embeddings": True, "output_gate_type": "swish",
                "partial_rotary_factor": 0.5},
            vision=VISION_3_5 | {"num_position_embeddings": 25},
            video_processor={"size": {"shortest_edge": 1024, "longest_edge": 3600}, "min_frames": 4, "max_frames": 7},
        ),
        samples=[MOVING, BOTH], generate="moving",
    ),
    Case(
        name="qwen2_5_vl_windows",
        about="names and files of the published checkpoints, untied: images of different sizes, most of whose windows are cut off",
        shape=Shape(model_type="qwen2_5_vl", layout="hub", seed=41, text=TEXT, vision=VISION_2_5),
        samples=[ONE, THREE, TWO], generate="three",
    ),
    Case(
        name="qwen2_5_vl_video",
        about="files as transformers 5 saves them, tied: videos, one of them with an image, of which the longer is sampled",
        shape=Shape(
            model_type="qwen2_5_vl", layout="saved", seed=32, text=TEXT | {"tie_word_embeddings": True},
            vision=VISION_2_5 | {"tokens_per_second": 3, "fullatt_block_indexes": [0, 2]},
            video_processor={"min_pixels": 192, "max_pixels": 640, "min_frames": 4, "max_frames": 7},
        ),
        samples=[MOVING, BOTH], generate="moving",
    ),
    Case(
        name="qwen2_vl_images",
        about="Qwen2-VL as published, without a text-only sample: LayerNorm, quick_gelu, full attention, one frame one position",
        shape=Shape(
            model_type="qwen2_vl", layout="hub", seed=33, text=TEXT | {"num_key_value_heads": 2}, vision=VISION_2,
        ),
        samples=[TWO, ONE], generate="one",
    ),
    Case(
        name="qwen2_5_vl_mixed",
        about="names of transformers 5's modules, with YaRN: text only, one image, three images and a video in one batch; "
        "positions as transformers 5.23 has them",
        shape=Shape(
            model_type="qwen2_5_vl", layout="modules", seed=34, video_layout="transformers5",
            text=TEXT | {"rope_scaling": {"type": "yarn", "mrope_section": [2, 3, 3], "factor": 4.0,
                                          "original_max_position_embeddings": 64}},
            vision=VISION_2_5,
        ),
        samples=[WORDS, ONE, THREE, MOVING], generate="words",
    ),
    Case(
        name="qwen3_vl_images",
        about="names and files of the published checkpoints, tied: text only, one image, three images, two images",
        shape=Shape(
            model_type="qwen3_vl", layout="modules", seed=51, text=TEXT_3 | {"tie_word_embeddings": True}, vision=VISION_3,
        ),
        samples=[WORDS, ONE, THREE, TWO], generate="three",
    ),
    Case(
        name="qwen3_vl_video",
        about="files as transformers 5 saves them, untied, with biases of query, key, value and output: videos, one of them with "
        "an image, of which the longer is sampled; features of one block after the text model's first",
        shape=Shape(
            model_type="qwen3_vl", layout="saved", seed=52,
            text=TEXT_3 | {"attention_bias": True, "head_dim": 16, "num_key_value_heads": 2, "rope_scaling": {
                "mrope_interleaved": True, "mrope_section": [4, 2, 2], "rope_type": "default"}},
            vision=VISION_3 | {"depth": 3, "deepstack_visual_indexes": [1], "num_position_embeddings": 25},
            video_processor={"size": {"shortest_edge": 1024, "longest_edge": 3600}, "min_frames": 4, "max_frames": 7},
        ),
        samples=[MOVING, BOTH], generate="moving",
    ),
    Case(
        name="qwen3_vl_mixed",
        about="text only, one image, three images and a video in one batch, with the video's frames inside the template's marks as "
        "transformers 5.23 has them; features of three blocks",
        shape=Shape(
            model_type="qwen3_vl", layout="modules", seed=53, video_layout="transformers5",
            text=TEXT_3 | {"num_hidden_layers": 4, "num_key_value_heads": 2},
            vision=VISION_3 | {"deepstack_visual_indexes": [0, 1, 3]},
            video_processor={"size": {"shortest_edge": 256, "longest_edge": 9000}, "image_mean": [0.5, 0.5, 0.5],
                             "image_std": [0.5, 0.5, 0.5], "cap_pixels_per_frame": True, "max_video_tokens": 12},
        ),
        samples=[WORDS, ONE, THREE, MOVING], generate="moving",
    ),
]
