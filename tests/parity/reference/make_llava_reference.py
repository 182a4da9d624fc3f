"""Makes the LLaVA cases of ../data: python make_llava_reference.py [--only CASE]. The files are those of make_reference.py, but:

The vision tower of the original layout lies in tower/. Tensors have vlmtrain's names: those of transformers' modules, or LLaVA's
own in the original layout. There input_ids are 0 where an image feature goes. case.json says under `deviation` how far float32
(what is stored) is from float64.
"""

import argparse
import json
import shutil
import tempfile
from pathlib import Path

import torch
import transformers

from library import deviations
from library import llava_checkpoints
from library import llava_format
from library import test_images
from library import thin
from library import training
from library.cases import Case, sample
from library.llava_checkpoints import Shape, own_names
from make_reference import NEW_TOKENS, SMALLEST_LEAD, describe, expected_tensors

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
ONE = sample("one", ["cat.png"], "<image>\nWhat is shown in this picture?", "A cat on the table, near 2 balls.")
TWO = sample(
    "two", ["wide.jpg", "tall.png"],
    "<image>\n<image>\nCompare the two pictures.", "The first one has more contrast.", "Say more.", "There is no fluid.",
)
WORDS = sample("words", [], "Is there a fracture? Grüße, 東京", "No, there is none. Ça va")
IMAGES = {"cat.png": (70, 53, 1, "RGB"), "wide.jpg": (90, 31, 2, "RGB"), "tall.png": (30, 81, 3, "L")}

CASES = [
    Case(
        name="llava_clip_llama",
        about="names and files of llava-hf's checkpoints: CLIP, feature layer -2, centre crop, Llama; mixed batch",
        shape=Shape(layout="hub", seed=21, text={"model_type": "llama"} | TEXT, vision=CLIP),
        source_images=IMAGES,
        samples=[ONE, TWO, WORDS],
        generate="two",
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
        source_images=IMAGES,
        samples=[TWO, ONE],
        generate="one",
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
        source_images=IMAGES,
        samples=[ONE, WORDS, TWO],
        generate="one",
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
        source_images=IMAGES,
        samples=[TWO, ONE, WORDS],
        generate="two",
    ),
]


def with_own_names(shape, result):
    result.gradients = {own_names(shape, name): value for name, value in result.gradients.items()}
    result.parameters = {own_names(shape, name): value for name, value in result.parameters.items()}
    result.without_gradient = [own_names(shape, name) for name in result.without_gradient]
    return result


def summary(single, double):
    deviation = deviations.compare(single, double)
    gradients = {n: deviations.relative(g) for n, g in deviation["gradients"].items() if not zero_gradient(n)}
    parameters = {n: p["mean"] for n, p in deviation["parameters"].items() if not zero_gradient(n)}
    return {
        "loss": deviation["loss"], "logits": deviation["logits"], "largest_logit": deviation["largest_logit"],
        "worst_gradient": max(gradients.values()), "worst_mean_of_a_parameter_after_steps": max(parameters.values()),
    }


def zero_gradient(name):
    return "vision" in name and deviations.is_zero_gradient(name)


def generation(case, second_model, processor, image_token_id, images):
    shape = case.shape
    source = next(record for record in case.samples if record["id"] == case.generate)
    prompt = llava_format.encode(processor, shape, image_token_id, source, images, turns=1)
    inputs = training.forward_inputs(prompt, torch.float32)
    new_ids, lead = training.generate(second_model, inputs, NEW_TOKENS)
    assert len(new_ids) == NEW_TOKENS, "the answer ended early: choose another seed"
    assert lead > SMALLEST_LEAD, f"the closest choice of a token has a lead of only {lead}: choose another seed"
    return {"generation.prompt_ids": prompt.input_ids, "generation.new_ids": new_ids}


def make(case, out):
    folder, shape = out / case.name, case.shape
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, (width, height, seed, mode) in case.source_images.items():
        test_images.save(test_images.draw(width, height, seed, mode), folder / "images" / name)
    text = json.dumps(case.samples, indent=2, ensure_ascii=False)
    (folder / "conversations.json").write_text(text + "\n")
    with tempfile.TemporaryDirectory() as scratch:
        second_model = Path(scratch) / "second_model"
        llava_checkpoints.write(shape, folder / "checkpoint", second_model)
        readable = second_model if shape.layout == "original" else folder / "checkpoint"
        processor = llava_checkpoints.make_processor(shape, folder / "checkpoint")
        image_id = json.loads((second_model / "config.json").read_text())["image_token_index"]
        images = folder / "images"
        samples = [llava_format.encode(processor, shape, image_id, record, images) for record in case.samples]
        single = with_own_names(shape, training.run(readable, samples, torch.float32))
        double = with_own_names(shape, training.run(readable, samples, torch.float64))
        tensors = expected_tensors(samples, single) | {"loss_float64": double.loss}
        tensors |= generation(case, readable, processor, image_id, images)
    if shape.layout == "original":
        for name in [name for name in tensors if name.endswith("_ids")]:
            tensors[name] = tensors[name].masked_fill(tensors[name] == image_id, 0)
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
    print("transformers", transformers.__version__)
    for case in CASES:
        if arguments.only in (None, case.name):
            make(case, arguments.out)


if __name__ == "__main__":
    main()
