"""Makes the cases of Qwen2-VL, Qwen2.5-VL and Qwen3-VL of ../data: python make_qwen_reference.py [--only CASE]. The files are those of make_reference.py, but:

    sample.I.pixel_values   float32 [patches, 3, frames · side, side]: the frames of a patch one above the other
    sample.I.position_ids   int64 [3, tokens]

A video is a folder of PNG frames under images/. case.json says under `deviation` how far float32 (what is stored) is from float64.
"""

import argparse
import json
import shutil
from pathlib import Path

import torch
import transformers
from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl
from transformers.models.qwen2_vl import modeling_qwen2_vl
from transformers.models.qwen3_vl import modeling_qwen3_vl

from library import test_images
from library import qwen_checkpoints
from library import qwen_format
from library import thin
from library import training
from library.cases import Case, sample
from make_llava_reference import summary
from make_reference import NEW_TOKENS, SMALLEST_LEAD, describe, expected_tensors
from library.qwen_checkpoints import Shape

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
ONE = sample("one", ["cat.png"], "<image>\nWhat is shown in this picture?", "A cat on the table, near 2 balls.")
TWO = sample(
    "two", ["wide.jpg", "tall.png"],
    "<image>\n<image>\nCompare the two pictures.", "The first one has more contrast.", "Say more.", "There is no fluid.",
)
THREE = sample(
    "three", ["tall.png", "small.png", "cat.png"],
    "<image>\nDescribe the first image.", "It shows the right kidney with a stone.",
    "And these, <image> and <image>?", "No, there is none; the outline is smooth.",
)
WORDS = sample("words", [], "Is there a fracture? Grüße, 東京", "No, there is none. Ça va")
IMAGES = {
    "cat.png": (70, 53, 1, "RGB"), "wide.jpg": (90, 31, 2, "RGB"), "tall.png": (30, 81, 3, "L"), "small.png": (11, 9, 4, "RGB"),
}


def with_video(record, *names):
    """The record of sample() with videos instead of its images, or in addition to them."""
    return {"id": record["id"], "video": names[0] if len(names) == 1 else list(names)} | {
        key: value for key, value in record.items() if key != "id"
    }


MOVING = with_video(sample("moving", [], "<video>\nWhat has changed?", "The third is darker."), "ball")
BOTH = with_video(
    sample("both", ["small.png"], "<video>\n<image>\nIs the ball in the picture?", "There is no ball.", "Sure?", "Yes."), "door"
)
# Frames of 2 a second: name -> (frames, width, height, seed).
VIDEOS = {"ball": (10, 40, 27, 5), "door": (5, 22, 46, 6)}

CASES = [
    Case(
        name="qwen2_5_vl_windows",
        about="names and files of the published checkpoints, untied: images of different sizes, most of whose windows are cut off",
        shape=Shape(model_type="qwen2_5_vl", layout="hub", seed=41, text=TEXT, vision=VISION_2_5),
        source_images=IMAGES,
        samples=[ONE, THREE, TWO],
        generate="three",
    ),
    Case(
        name="qwen2_5_vl_video",
        about="files as transformers 5 saves them, tied: videos, one of them with an image, of which the longer is sampled",
        shape=Shape(
            model_type="qwen2_5_vl", layout="saved", seed=32, text=TEXT | {"tie_word_embeddings": True},
            vision=VISION_2_5 | {"tokens_per_second": 3, "fullatt_block_indexes": [0, 2]},
            video_processor={"min_pixels": 192, "max_pixels": 640, "min_frames": 4, "max_frames": 7},
        ),
        source_images=IMAGES,
        samples=[MOVING, BOTH],
        generate="moving",
    ),
    Case(
        name="qwen2_vl_images",
        about="Qwen2-VL as published, without a text-only sample: LayerNorm, quick_gelu, full attention, one frame one position",
        shape=Shape(
            model_type="qwen2_vl", layout="hub", seed=33, text=TEXT | {"num_key_value_heads": 2}, vision=VISION_2,
        ),
        source_images=IMAGES,
        samples=[TWO, ONE],
        generate="one",
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
        source_images=IMAGES,
        samples=[WORDS, ONE, THREE, MOVING],
        generate="words",
    ),
    Case(
        name="qwen3_vl_images",
        about="names and files of the published checkpoints, tied: text only, one image, three images, two images",
        shape=Shape(
            model_type="qwen3_vl", layout="modules", seed=51, text=TEXT_3 | {"tie_word_embeddings": True}, vision=VISION_3,
        ),
        source_images=IMAGES,
        samples=[WORDS, ONE, THREE, TWO],
        generate="three",
    ),
    Case(
        name="qwen3_vl_video",
        about="files as transformers 5 saves them, untied, with biases of query, key, value and output: videos, one of them with "
        "an image, of which the longer is sampled; features of one block behind the text model's first",
        shape=Shape(
            model_type="qwen3_vl", layout="saved", seed=52,
            text=TEXT_3 | {"attention_bias": True, "head_dim": 16, "num_key_value_heads": 2, "rope_scaling": {
                "mrope_interleaved": True, "mrope_section": [4, 2, 2], "rope_type": "default"}},
            vision=VISION_3 | {"depth": 3, "deepstack_visual_indexes": [1], "num_position_embeddings": 25},
            video_processor={"size": {"shortest_edge": 1024, "longest_edge": 3600}, "min_frames": 4, "max_frames": 7},
        ),
        source_images=IMAGES,
        samples=[MOVING, BOTH],
        generate="moving",
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
        source_images=IMAGES,
        samples=[WORDS, ONE, THREE, MOVING],
        generate="moving",
    ),
]


def wide_rotary(q, k, cos, sin):
    """apply_rotary_pos_emb_vision without its cast to float32, so that float64 stays float64; in float32 it is the same."""
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
    rotated = modeling_qwen2_vl.rotate_half
    return (q * cos) + (rotated(q) * sin), (k * cos) + (rotated(k) * sin)


def keep_float64():
    modeling_qwen2_vl.apply_rotary_pos_emb_vision = wide_rotary
    modeling_qwen2_5_vl.apply_rotary_pos_emb_vision = wide_rotary
    modeling_qwen3_vl.apply_rotary_pos_emb_vision = wide_rotary


def write_video(folder, frames, width, height, seed):
    for index in range(frames):
        image = test_images.draw(width, height, seed).point(lambda value, shift=7 * index: (value + shift) % 256)
        test_images.save(image, folder / f"frame_{index:02d}.png")


def find_videos(case):
    names = [record.get("video", []) for record in case.samples]
    return {name for name in names if isinstance(name, str)}


def write_inputs(case, folder):
    image_names = {name for record in case.samples for name in qwen_format.image_paths(record, "")}
    for name, (width, height, seed, mode) in case.source_images.items():
        if Path(name) in image_names:
            test_images.save(test_images.draw(width, height, seed, mode), folder / "images" / name)
    for name in find_videos(case):
        write_video(folder / "images" / name, *VIDEOS[name])
    text = json.dumps(case.samples, indent=2, ensure_ascii=False)
    (folder / "conversations.json").write_text(text + "\n")


def generation(case, checkpoint, encode):
    record = next(record for record in case.samples if record["id"] == case.generate)
    prompt = encode(record, turns=1)
    new_ids, lead = training.generate(checkpoint, training.forward_inputs(prompt, torch.float32), NEW_TOKENS)
    assert len(new_ids) == NEW_TOKENS, "the answer ended early: choose another seed"
    assert lead > SMALLEST_LEAD, f"the closest choice of a token has a lead of only {lead}: choose another seed"
    return {"generation.prompt_ids": prompt.input_ids, "generation.new_ids": new_ids}


def make(case, out):
    folder, shape = out / case.name, case.shape
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    checkpoint = folder / "checkpoint"
    processor = qwen_checkpoints.write(shape, checkpoint)
    write_inputs(case, folder)
    model = training.load(checkpoint, torch.float32)

    def encode(record, turns=None):
        return qwen_format.encode(processor, model, record, folder / "images", shape.vision, turns, shape.video_layout)

    samples = [encode(record) for record in case.samples]
    single = training.run(checkpoint, samples, torch.float32)
    double = training.run(checkpoint, samples, torch.float64)
    tensors = expected_tensors(samples, single) | {"loss_float64": double.loss}
    tensors |= {f"sample.{index}.position_ids": value.position_ids for index, value in enumerate(samples)}
    tensors |= generation(case, checkpoint, encode)
    thin.save(tensors, folder / "expected.safetensors")
    description = describe(case, samples, single) | {
        "image_mean": list(processor.image_processor.image_mean),
        "image_std": list(processor.image_processor.image_std),
        "deviation": summary(single, double),
        "video_layout": shape.video_layout,
    }
    (folder / "case.json").write_text(json.dumps(description, indent=2, ensure_ascii=False) + "\n")
    print(case.name, json.dumps(description["deviation"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "data")
    parser.add_argument("--only", help="make only this case")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    keep_float64()
    print("transformers", transformers.__version__)
    for case in CASES:
        if arguments.only in (None, case.name):
            with qwen_format.video_layout(case.shape.video_layout):
                make(case, arguments.out)


if __name__ == "__main__":
    main()
