"""Makes the cases of Gemma 3 of ../data: python make_gemma3_reference.py [--only CASE]. The files are those of make_reference.py, but:

    sample.I.pixel_values   float32 [images and their crops, 3, side, side]

case.json says under `deviation` how far float32 (what is stored) is from float64.
"""

import argparse
import json
import shutil
from pathlib import Path

import torch
import transformers
from transformers.models.gemma3 import modeling_gemma3

from library import gemma3_checkpoints
from library import gemma3_format
from library import test_images
from library import thin
from library import training
from library.cases import Case
from library.gemma3_checkpoints import Shape
from make_llava_reference import summary
from make_qwen_reference import ONE, IMAGES, THREE, TWO, WORDS
from make_reference import NEW_TOKENS, SMALLEST_LEAD, describe, expected_tensors

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
        source_images=IMAGES,
        samples=[WORDS, ONE, THREE, TWO],
        generate="three",
    ),
    Case(
        name="gemma3_saved",
        about="files as transformers 5 saves them, untied: a full block first, a window between an image and a sample, scores divided "
        "by another number than the root of the head's size, a matrix of other sides on each side, a picture's patches not pooled",
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
        source_images=IMAGES,
        samples=[TWO, ONE],
        generate="one",
    ),
    Case(
        name="gemma3_crops",
        about="names of transformers 5's modules, tied, with pan and scan: pictures with three crops, two and none, in a batch with text",
        shape=Shape(
            layout="modules", seed=83, tokens_per_image=4, with_template=True, vision=VISION | {"image_size": 32},
            text=TEXT | {"num_hidden_layers": 3, "sliding_window": 11, "sliding_window_pattern": 2, "query_pre_attn_scalar": 16},
            crops={"do_pan_and_scan": True, "pan_and_scan_min_crop_size": 24, "pan_and_scan_max_num_crops": 3,
                   "pan_and_scan_min_ratio_to_activate": 1.2},
        ),
        source_images=IMAGES,
        samples=[TWO, WORDS, ONE, THREE],
        generate="two",
    ),
    Case(
        name="gemma3_words",
        about="text only, with samples longer than the window of every other block",
        shape=Shape(
            layout="hub", seed=76, tokens_per_image=4, vision=VISION | {"image_size": 16},
            text=TEXT | {"num_hidden_layers": 3, "sliding_window": 5, "sliding_window_pattern": 2, "num_key_value_heads": 2},
        ),
        source_images={},
        samples=[WORDS],
        generate="words",
    ),
]


def wide_norm(self, x):
    """Gemma3RMSNorm without its cast to float32, so that float64 stays float64; in float32 it is the same."""
    return self._norm(x) * (1.0 + self.weight)


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
    processor = gemma3_checkpoints.write(shape, checkpoint)
    for name, (width, height, seed, mode) in case.source_images.items():
        test_images.save(test_images.draw(width, height, seed, mode), folder / "images" / name)
    text = json.dumps(case.samples, indent=2, ensure_ascii=False)
    (folder / "conversations.json").write_text(text + "\n")

    def encode(record, turns=None):
        return gemma3_format.encode(processor, shape, record, folder / "images", turns)

    samples = [encode(record) for record in case.samples]
    single = training.run(checkpoint, samples, torch.float32)
    double = training.run(checkpoint, samples, torch.float64)
    tensors = expected_tensors(samples, single) | {"loss_float64": double.loss}
    tensors |= generation(case, checkpoint, encode)
    thin.save(tensors, folder / "expected.safetensors")
    description = describe(case, samples, single) | {
        "image_mean": list(processor.image_processor.image_mean),
        "image_std": list(processor.image_processor.image_std),
        "deviation": summary(single, double),
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
    modeling_gemma3.Gemma3RMSNorm.forward = wide_norm
    print("transformers", transformers.__version__)
    for case in CASES:
        if arguments.only in (None, case.name):
            make(case, arguments.out)


if __name__ == "__main__":
    main()
