"""InternVL."""

from library import internvl_checkpoints, internvl_format
from library.cases import BOTH, MOVING, ONE, THREE, TWO, WORDS, Case
from library.family import Family
from library.internvl_checkpoints import Shape


class Model(Family):
    checkpoints, format = internvl_checkpoints, internvl_format


VISION = {
    "attention_bias": True, "attention_dropout": 0.0, "hidden_act": "gelu", "hidden_dropout_prob": 0.0, "hidden_size": 48,
    "image_size": [28, 28], "initializer_range": 1e-10, "intermediate_size": 44, "layer_norm_eps": 1e-6,
    "layer_scale_init_value": 0.1, "norm_type": "layer_norm", "num_attention_heads": 2, "num_channels": 3, "num_hidden_layers": 2,
    "patch_size": [7, 7], "projection_dropout": 0.0, "use_absolute_position_embeddings": True, "use_mask_token": False,
    "use_mean_pooling": True, "use_qk_norm": False,
}
# As the tower of six billion parameters.
VISION_RMS = VISION | {"norm_type": "rms_norm", "attention_bias": False, "use_qk_norm": True}
TEXT = {
    "model_type": "qwen2", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "max_position_embeddings": 2048, "use_sliding_window": False,
    "sliding_window": None, "max_window_layers": 70, "hidden_act": "silu", "attention_dropout": 0.0, "rope_theta": 1000000.0,
}
TEXT_3_5 = TEXT | {"model_type": "qwen3", "head_dim": 24, "attention_bias": False, "num_attention_heads": 2, "num_key_value_heads": 1}

CASES = [
    Case(
        name="internvl3_tiles",
        about="Qwen2's text model, names and files of the published checkpoints, untied without a word in config.json, rope of type "
        "dynamic: images in tiles of different grids",
        shape=Shape(
            layout="hub", seed=51, vision=VISION,
            text=TEXT | {"rope_scaling": {"factor": 2.0, "rope_type": "dynamic", "type": "dynamic"}},
        ),
        samples=[ONE, THREE, TWO], generate="three",
    ),
    Case(
        name="internvl3_5_mixed",
        about="Qwen3's text model with a head size of its own, names of transformers 5's modules, tied: text only, one image, three "
        "and a video in one batch; no less than two cells; tiles that are no multiple of the patch",
        shape=Shape(
            layout="modules", seed=52, text=TEXT_3_5, vision=VISION | {"image_size": [30, 30]}, tie_embeddings=True, tiles=(2, 3),
        ),
        samples=[WORDS, ONE, THREE, MOVING], generate="words",
    ),
    Case(
        name="internvl_rms_norm_video",
        about="a tower of RMSNorms, of queries and keys too, with a norm at its end; sixteen patches a token; files as "
        "transformers 5 saves them: videos that are sampled, one next to an image",
        shape=Shape(
            layout="saved", seed=53, text=TEXT_3_5 | {"attention_bias": True},
            vision=VISION_RMS | {"image_size": [32, 32], "patch_size": [4, 4], "use_mean_pooling": False},
            downsample_ratio=0.25, video_processor={"num_frames": 4},
        ),
        samples=[MOVING, BOTH], generate="moving",
    ),
]
