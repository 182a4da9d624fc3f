"""Makes the InternVL cases of ../data: python make_internvl_reference.py [--only CASE]. The files are those of make_reference.py.

A video is a folder of PNG frames under images/. case.json says under `deviation` how far float32 (what is stored) is from float64.
"""

import argparse
import json
import shutil
from pathlib import Path

import torch
import transformers

from library import internvl_checkpoints
from library import internvl_format
from library import thin
from library import training
from library.cases import Case
from library.internvl_checkpoints import Shape
from make_llava_reference import summary
from make_qwen_reference import BOTH, MOVING, ONE, IMAGES, THREE, TWO, WORDS, write_inputs
from make_reference import NEW_TOKENS, SMALLEST_LEAD, describe, expected_tensors

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
        "dynamic: pictures in tiles of different grids",
        shape=Shape(
            layout="hub", seed=51, vision=VISION,
            text=TEXT | {"rope_scaling": {"factor": 2.0, "rope_type": "dynamic", "type": "dynamic"}},
        ),
        source_images=IMAGES,
        samples=[ONE, THREE, TWO],
        generate="three",
    ),
    Case(
        name="internvl3_5_mixed",
        about="Qwen3's text model with a head size of its own, names of transformers 5's modules, tied: text only, one picture, three "
        "and a video in one batch; no less than two cells; tiles that are no multiple of the patch",
        shape=Shape(
            layout="modules", seed=52, text=TEXT_3_5, vision=VISION | {"image_size": [30, 30]}, tie_embeddings=True, tiles=(2, 3),
        ),
        source_images=IMAGES,
        samples=[WORDS, ONE, THREE, MOVING],
        generate="words",
    ),
    Case(
        name="internvl_rms_norm_video",
        about="a tower of RMSNorms, of queries and keys too, with a norm at its end; sixteen patches a token; files as "
        "transformers 5 saves them: videos that are sampled, one beside a picture",
        shape=Shape(
            layout="saved", seed=53, text=TEXT_3_5 | {"attention_bias": True},
            vision=VISION_RMS | {"image_size": [32, 32], "patch_size": [4, 4], "use_mean_pooling": False},
            downsample_ratio=0.25, video_processor={"num_frames": 4},
        ),
        source_images=IMAGES,
        samples=[MOVING, BOTH],
        generate="moving",
    ),
]


def generation(case, checkpoint, encode):
    record = next(record for record in case.samples if record["id"] == case.generate)
    prompt = encode(record, turns=1)
    new_ids, lead = training.generate(checkpoint, training.forward_inputs(prompt, torch.float32), NEW_TOKENS)
    assert len(new_ids) == NEW_TOKENS, "the answer ended early: choose another seed"
    assert lead > SMALLEST_LEAD, f"the closest choice of a token has a lead of only {lead}: choose another seed"
    return {"generation.prompt_ids": prompt.input_ids, "generation.new_ids": new_ids}


def make(case, out):
    folder = out / case.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    checkpoint = folder / "checkpoint"
    processor = internvl_checkpoints.write(case.shape, checkpoint)
    write_inputs(case, folder)

    def encode(record, turns=None):
        return internvl_format.encode(processor, case.shape, record, folder / "images", turns)

    samples = [encode(record) for record in case.samples]
    single = training.run(checkpoint, samples, torch.float32)
    double = training.run(checkpoint, samples, torch.float64)
    tensors = expected_tensors(samples, single) | {"loss_float64": double.loss} | generation(case, checkpoint, encode)
    thin.save(tensors, folder / "expected.safetensors")
    description = describe(case, samples, single) | {"deviation": summary(single, double)}
    (folder / "case.json").write_text(json.dumps(description, indent=2, ensure_ascii=False) + "\n")
    print(case.name, json.dumps(description["deviation"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "data")
    parser.add_argument("--only", help="make only this case")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    print("transformers", transformers.__version__)
    for case in CASES:
        if arguments.only in (None, case.name):
            make(case, arguments.out)


if __name__ == "__main__":
    main()
