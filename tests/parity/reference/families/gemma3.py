"""Gemma 3. sample.I.pixel_values are float32 [images and their crops, 3, side, side]."""

from library.gemma import gemma3_checkpoints, gemma3_format
from library.cases import IMAGES, ONE, THREE, TWO, WORDS, Case
from library.family import Family
from library.gemma.gemma3_checkpoints import Shape


class Model(Family):
    checkpoints, format = gemma3_checkpoints, gemma3_format
    has_normalization = True


VISION = {
    "hidden_size": 32, "intermediate_size": 44, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 48, "patch_size": 8,
}
# Heads of another size than hidden_size / num_attention_heads.
TEXT = {
    "head_dim": 24, "hidden_size": 32, "intermediate_size": 64, "max_position_embeddings": 2048, "num_attention_heads": 2,
    "num_key_value_heads": 1, "query_pre_attn_scalar": 24, "rms_norm_eps": 1e-6,
}
CASES = [
    Case(
        name="gemma3_published",
        about="names, keys and files of the published checkpoints, tied: five sliding blocks to a full one, with a window shorter "
        "than the samples and than an image's tokens, linear rope in full blocks; text only, one image, three images, two images",
        shape=Shape(
            layout="hub", seed=71, tokens_per_image=9, vision=VISION,
            text=TEXT | {"num_hidden_layers": 7, "sliding_window": 7, "sliding_window_pattern": 6, "rope_theta": 1e6,
                         "rope_local_base_freq": 1e4, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}},
        ),
        images=IMAGES, samples=[WORDS, ONE, THREE, TWO], generate="three",
    ),
    Case(
        name="gemma3_saved",
        about="files as transformers 5 saves them, untied: a full block first, a window between an image and a sample, scores divided "
        "by another number than the root of the head's size, a matrix of other sides on each side, an image's patches not pooled",
        shape=Shape(
            layout="saved", seed=72, tokens_per_image=16, tied=False, with_template=True,
            vision=VISION | {"image_size": 36, "patch_size": 9, "hidden_size": 24, "num_attention_heads": 3},
            text=TEXT | {"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
                         "query_pre_attn_scalar": 21, "sliding_window": 29,
                         "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
                         "rope_parameters": {
                             "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 50000.0},
                             "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0}}},
        ),
        images=IMAGES, samples=[TWO, ONE], generate="one",
    ),
    Case(
        name="gemma3_crops",
        about="names of transformers 5's modules, tied, with pan and scan: images with three crops, two and none, in a batch with text",
        shape=Shape(
            layout="modules", seed=83, tokens_per_image=4, with_template=True, vision=VISION | {"image_size": 32},
            text=TEXT | {"num_hidden_layers": 3, "sliding_window": 11, "sliding_window_pattern": 2, "query_pre_attn_scalar": 16},
            crops={"do_pan_and_scan": True, "pan_and_scan_min_crop_size": 24, "pan_and_scan_max_num_crops": 3,
                   "pan_and_scan_min_ratio_to_activate": 1.2},
        ),
        images=IMAGES, samples=[TWO, WORDS, ONE, THREE], generate="two",
    ),
    Case(
        name="gemma3_words",
        about="text only, with samples longer than the window of every other block",
        shape=Shape(
            layout="hub", seed=76, tokens_per_image=4, vision=VISION | {"image_size": 16},
            text=TEXT | {"num_hidden_layers": 3, "sliding_window": 5, "sliding_window_pattern": 2, "num_key_value_heads": 2},
        ),
        samples=[WORDS], generate="words",
    ),
]
