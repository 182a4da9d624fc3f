"""Makes the nanoVLM cases of ../data: python make_nanovlm_reference.py [--only CASE]. The files are those of make_reference.py, but:

The model is put together here of transformers' SiglipVisionModel and LlamaForCausalLM; checkpoint/ and the tensors have nanoVLM's
names and shapes. sample.I.pixel_values are rounded to bytes (nanovlm_format.py); sample.I.unrounded_pixels are nanoVLM's own of
the tiles sample.I.unrounded_tiles, where they differ. case.json says under `deviation` how far float32 is from float64, and under `unrounded` what the rounding changes.
"""

import argparse
import copy
import json
import shutil
from pathlib import Path

import torch
import transformers

from library import nanovlm_checkpoints
from library import nanovlm_format
from library import test_images
from library import thin
from library import training
from library.cases import Case, sample
from make_llava_reference import summary
from make_reference import NEW_TOKENS, SMALLEST_LEAD, describe, expected_tensors

VISION = {
    "vit_hidden_dim": 32, "vit_inter_dim": 64, "vit_patch_size": 8, "vit_img_size": 32, "vit_n_heads": 4, "vit_dropout": 0.0,
    "vit_n_blocks": 2, "vit_ln_eps": 1e-6, "vit_cls_flag": False, "vit_model_type": "google/siglip-base-patch16-224",
}
TEXT = {
    "lm_hidden_dim": 32, "lm_inter_dim": 64, "lm_rms_eps": 1e-5, "lm_re_base": 100000, "lm_max_position_embeddings": 2048,
    "lm_n_heads": 4, "lm_n_kv_heads": 2, "lm_dropout": 0.0, "lm_n_blocks": 2, "lm_attn_scaling": 1.0, "lm_use_tokens": False,
    "lm_tie_weights": True,
}
END = {"vlm_load_backbone_weights": True, "vlm_checkpoint_path": "checkpoints", "hf_repo_name": "nanoVLM"}
CHAT = {
    "lm_model_type": "HuggingFaceTB/SmolLM2-360M-Instruct", "lm_tokenizer": "HuggingFaceTB/SmolLM2-360M-Instruct",
    "lm_chat_template": nanovlm_format.CHAT_TEMPLATE,
}


def cell_tokens(most):
    return {f"r{row}c{col}": f"<row_{row}_col_{col}>" for row in range(1, most + 1) for col in range(1, most + 1)}


ONE = sample("one", ["cat.png"], "<image>\nWhat is shown in this picture?", "A cat on the table, near 2 balls.")
TALL = sample("tall", ["tall.png"], "<image>\nWhich colour is the ball?", "It is dark.")
TWO = sample(
    "two", ["wide.jpg", "small.png"],
    "<image>\n<image>\nCompare the two pictures.", "The first one has more contrast.", "Say more.", "There is no fluid.",
)
WORDS = sample("words", [], "Is there a fracture? Grüße, 東京", "No, there is none. Ça va")
IMAGES = {
    "cat.png": (70, 53, 1, "RGB"), "wide.jpg": (90, 31, 2, "RGB"), "tall.png": (30, 81, 3, "L"), "small.png": (20, 17, 4, "RGB"),
}

# Of each case: nanoVLM's config, seed, entries of the tokenizer's base, whether its file has the extra tokens.
CASES = [
    (
        Case(
            name="nanovlm_images_first", shape=None, source_images=IMAGES, samples=[ONE, TALL, WORDS], generate="one",
            about="the release v0.1 (nanoVLM-222M): no token for an image, features before the text, squashed to one tile",
        ),
        VISION | TEXT | {
            "lm_vocab_size": 400, "lm_max_length": 79,
            "lm_model_type": "HuggingFaceTB/SmolLM2-135M", "lm_tokenizer": "HuggingFaceTB/cosmo2-tokenizer", "lm_eos_token_id": 0,
            "mp_pixel_shuffle_factor": 2, "vlm_load_backbone_weights": True, "vlm_checkpoint_path": "checkpoints/nanoVLM-222M",
        },
        (31, 400, False),
    ),
    (
        Case(
            name="nanovlm_tiles", shape=None, source_images=IMAGES, samples=[TWO, ONE, WORDS, TALL], generate="two",
            about="the present release: tiles with the whole picture before them, extra tokens behind those of tokenizer.json, "
            "more vocabulary rows than tokens, one key head",
        ),
        VISION | TEXT | CHAT | {
            "lm_n_kv_heads": 1, "lm_base_vocab_size": 390, "extra_token_amount": 14, "lm_vocab_size": 404, "lm_max_length": 4096,
            "mp_pixel_shuffle_factor": 2, "mp_image_token_length": 4, "max_img_size": 96, "resize_to_max_side_len": False,
            "vlm_extra_tokens": {"image_token": "<|image|>", "global_image_token": "<|global_image|>"} | cell_tokens(3),
        } | END,
        (32, 390, False),
    ),
    (
        Case(
            name="nanovlm_untied", shape=None, source_images=IMAGES, samples=[ONE, TWO], generate="one",
            about="the release of July 2025: tiles without the whole picture; always resized to the longest side, an output of its "
            "own, as many key as query heads, another pixel shuffle, the extra tokens in tokenizer.json",
        ),
        VISION | TEXT | CHAT | {
            "vit_patch_size": 4, "lm_n_kv_heads": 4, "lm_max_length": 4096, "lm_tie_weights": False, "lm_base_vocab_size": 380, "extra_token_amount": 5,
            "lm_vocab_size": 385, "mp_pixel_shuffle_factor": 4, "mp_image_token_length": 4, "max_img_size": 64,
            "resize_to_max_side_len": True, "vlm_extra_tokens": {"image_token": "<|image|>"} | cell_tokens(2),
        } | END,
        (33, 380, True),
    ),
]


def with_own_names(result):
    result.gradients = nanovlm_checkpoints.own_names(result.gradients)
    result.parameters = nanovlm_checkpoints.own_names(result.parameters)
    assert not result.without_gradient
    return result


def generate(model, prompt):
    """Greedy tokens, and the smallest lead of a chosen token over the next best one."""
    ids, lead = prompt.input_ids, float("inf")
    with torch.no_grad():
        for _ in range(NEW_TOKENS):
            inputs = training.forward_inputs(prompt, torch.float32) | {"input_ids": ids[None]}
            best = model(**inputs).logits[0, -1].topk(2)
            lead = min(lead, (best.values[0] - best.values[1]).item())
            ids = torch.cat([ids, best.indices[:1]])
    return ids[len(prompt.input_ids) :], lead


def generation(case, model, tokenizer, config, images):
    source = next(record for record in case.samples if record["id"] == case.generate)
    prompt = nanovlm_format.encode(tokenizer, config, source, images, turns=1)
    new_ids, lead = generate(model, prompt)
    end = "<|im_end|>" if "vlm_extra_tokens" in config else "<|endoftext|>"
    assert tokenizer.convert_tokens_to_ids(end) not in new_ids.tolist(), "the answer ended early: choose another seed"
    assert lead > SMALLEST_LEAD, f"the closest choice of a token has a lead of only {lead}: choose another seed"
    return {"generation.prompt_ids": prompt.input_ids, "generation.new_ids": new_ids}


def what_rounding_changes(model, samples, result):
    """Of the largest logit, and of the loss."""
    exact = [copy.copy(one) for one in samples]
    for one in exact:
        one.pixel_values = one.unrounded_pixels
    with torch.no_grad():
        loss, logits = training.batch_loss(model, exact)
    pairs = list(zip(logits, result.sample_logits))
    largest = max(expected.abs().max() for _, expected in pairs)
    return {
        "loss": abs(loss - result.loss).item() / result.loss.item(),
        "logits": (max((actual - expected).abs().max() for actual, expected in pairs) / largest).item(),
    }


def make(case, config, seed, tokenizer_size, extra_in_file, out):
    folder = out / case.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, (width, height, image_seed, mode) in case.source_images.items():
        test_images.save(test_images.draw(width, height, image_seed, mode), folder / "images" / name)
    (folder / "conversations.json").write_text(json.dumps(case.samples, indent=2, ensure_ascii=False) + "\n")
    model = nanovlm_checkpoints.write(config, seed, tokenizer_size, extra_in_file, folder / "checkpoint")
    tokenizer = nanovlm_checkpoints.load_tokenizer(folder / "checkpoint", config)
    samples = [nanovlm_format.encode(tokenizer, config, record, folder / "images") for record in case.samples]
    single = training.run_model(copy.deepcopy(model), samples)
    double = training.run_model(training.in_float64(copy.deepcopy(model)), samples)
    deviation = summary(single, double)
    single = with_own_names(single)
    tensors = expected_tensors(samples, single) | {"loss_float64": double.loss}
    for index, one in enumerate(samples):
        if one.pixel_values is None:
            continue
        differ = (one.pixel_values != one.unrounded_pixels).flatten(1).any(1).nonzero()[:, 0]
        if len(differ):
            tensors[f"sample.{index}.unrounded_tiles"] = differ
            tensors[f"sample.{index}.unrounded_pixels"] = one.unrounded_pixels[differ]
    tensors |= generation(case, model, tokenizer, config, folder / "images")
    thin.save(tensors, folder / "expected.safetensors")
    description = describe(case, samples, single) | {
        "image_mean": [0.0, 0.0, 0.0], "image_std": [1.0, 1.0, 1.0], "deviation": deviation,
        "unrounded": what_rounding_changes(model, samples, single),
    }
    (folder / "case.json").write_text(json.dumps(description, indent=2, ensure_ascii=False) + "\n")
    print(case.name, json.dumps(description["deviation"]), json.dumps(description["unrounded"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "data")
    parser.add_argument("--only", help="make only this case")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    print("transformers", transformers.__version__)
    for case, config, settings in CASES:
        if arguments.only in (None, case.name):
            make(case, config, *settings, arguments.out)


if __name__ == "__main__":
    main()
