"""nanoVLM, put together of transformers' SiglipVisionModel and LlamaForCausalLM.

checkpoint/ and the tensors have nanoVLM's names and shapes. sample.I.pixel_values are rounded to bytes (nanovlm_format.py);
sample.I.unrounded_pixels are nanoVLM's own of the tiles sample.I.unrounded_tiles, where they differ. case.json says under
`unrounded` what the rounding changes. The model has no cache: each token is that of a pass over the whole.
"""

from dataclasses import replace

import torch
from safetensors.torch import load_file

from library import nanovlm_checkpoints, nanovlm_format, training
from library.cases import IMAGES as SHARED_IMAGES
from library.cases import ONE, WORDS, Case, sample
from library.family import Family
from library.nanovlm_checkpoints import Shape


class Model(Family):
    checkpoints, format = nanovlm_checkpoints, nanovlm_format
    has_normalization = True

    def load(self, dtype=torch.float32, attention="sdpa"):
        model = nanovlm_checkpoints.make_model(self.shape)
        stored = load_file(self.checkpoint / "model.safetensors")
        for name, value in nanovlm_checkpoints.weights(model, self.shape.config).items():
            assert torch.equal(value, stored[name]), f"{self.checkpoint} has other weights than are drawn here"
        return training.in_float64(model) if dtype == torch.float64 else model

    def generate(self, model, prompt, tokens, ends=True):
        inputs, ids, lead = training.forward_inputs(prompt, torch.float32), prompt.input_ids, float("inf")
        with torch.no_grad():
            for _ in range(tokens):
                best = model(**inputs | {"input_ids": ids[None]}).logits[0, -1].topk(2)
                lead = min(lead, (best.values[0] - best.values[1]).item())
                ids = torch.cat([ids, best.indices[:1]])
        new_ids = ids[len(prompt.input_ids) :]
        end = "<|im_end|>" if "vlm_extra_tokens" in self.shape.config else "<|endoftext|>"
        assert not ends or self.processor.convert_tokens_to_ids(end) not in new_ids, "the answer ended early: choose another seed"
        return new_ids, lead

    def own_names(self, tensors):
        return nanovlm_checkpoints.own_names(tensors)

    def more_tensors(self, samples):
        tensors = {}
        for index, one in enumerate(samples):
            if one.pixel_values is None:
                continue
            differ = (one.pixel_values != one.unrounded_pixels).flatten(1).any(1).nonzero()[:, 0]
            if len(differ):
                tensors[f"sample.{index}.unrounded_tiles"] = differ
                tensors[f"sample.{index}.unrounded_pixels"] = one.unrounded_pixels[differ]
        return tensors

    def normalization(self):
        return {"image_mean": [0.0, 0.0, 0.0], "image_std": [1.0, 1.0, 1.0]}

    def describe(self, samples, single, deviation):
        """With what the rounding changes of the loss, and of the largest logit."""
        exact = [
            replace(one, model_inputs=one.model_inputs | {"pixel_values": one.unrounded_pixels}) if one.model_inputs else one
            for one in samples
        ]
        with torch.no_grad():
            loss, logits = training.batch_loss(self.load(), exact)
        pairs = list(zip(logits, single.sample_logits))
        largest = max(expected.abs().max() for _, expected in pairs)
        return super().describe(samples, single, deviation) | {"unrounded": {
            "loss": abs(loss - single.loss).item() / single.loss.item(),
            "logits": (max((actual - expected).abs().max() for actual, expected in pairs) / largest).item(),
        }}


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


TALL = sample("tall", ["tall.png"], "<image>\nWhich colour is the ball?", "It is dark.")
TWO = sample(
    "two", ["wide.jpg", "small.png"],
    "<image>\n<image>\nCompare the two pictures.", "The first one has more contrast.", "Say more.", "There is no fluid.",
)
IMAGES = SHARED_IMAGES | {"small.png": (20, 17, 4, "RGB")}

CASES = [
    Case(
        name="nanovlm_images_first",
        about="the release v0.1 (nanoVLM-222M): no token for an image, features before the text, squashed to one tile",
        shape=Shape(VISION | TEXT | {
            "lm_vocab_size": 400, "lm_max_length": 79,
            "lm_model_type": "HuggingFaceTB/SmolLM2-135M", "lm_tokenizer": "HuggingFaceTB/cosmo2-tokenizer", "lm_eos_token_id": 0,
            "mp_pixel_shuffle_factor": 2, "vlm_load_backbone_weights": True, "vlm_checkpoint_path": "checkpoints/nanoVLM-222M",
        }, seed=31, tokenizer_size=400),
        images=IMAGES, samples=[ONE, TALL, WORDS], generate="one",
    ),
    Case(
        name="nanovlm_tiles",
        about="the present release: tiles with the whole image before them, extra tokens after those of tokenizer.json, "
        "more vocabulary rows than tokens, one key head",
        shape=Shape(VISION | TEXT | CHAT | {
            "lm_n_kv_heads": 1, "lm_base_vocab_size": 390, "extra_token_amount": 14, "lm_vocab_size": 404, "lm_max_length": 4096,
            "mp_pixel_shuffle_factor": 2, "mp_image_token_length": 4, "max_img_size": 96, "resize_to_max_side_len": False,
            "vlm_extra_tokens": {"image_token": "<|image|>", "global_image_token": "<|global_image|>"} | cell_tokens(3),
        } | END, seed=32, tokenizer_size=390),
        images=IMAGES, samples=[TWO, ONE, WORDS, TALL], generate="two",
    ),
    Case(
        name="nanovlm_untied",
        about="the release of July 2025: tiles without the whole image; always resized to the longest side, an output of its "
        "own, as many key as query heads, another pixel shuffle, the extra tokens in tokenizer.json",
        shape=Shape(VISION | TEXT | CHAT | {
            "vit_patch_size": 4, "lm_n_kv_heads": 4, "lm_max_length": 4096, "lm_tie_weights": False, "lm_base_vocab_size": 380,
            "extra_token_amount": 5, "lm_vocab_size": 385, "mp_pixel_shuffle_factor": 4, "mp_image_token_length": 4,
            "max_img_size": 64, "resize_to_max_side_len": True,
            "vlm_extra_tokens": {"image_token": "<|image|>"} | cell_tokens(2),
        } | END, seed=33, tokenizer_size=380, extra_in_file=True),
        images=IMAGES, samples=[ONE, TWO], generate="one",
    ),
]
