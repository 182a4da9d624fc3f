"""parity/data/sam/: what transformers' SamModel computes from small random weights.

cases.json has the configurations of the encoders, by name, and that of the decoder. ENCODER.safetensors holds

    pixels              [images, 3, image_size, image_size]
    features            [images · side², channels], image by image and row by row
    direction           like features: gradients are those of (features · direction).sum()
    gradient.pixels
    parameter.NAME, gradient.NAME   NAME as in SamVisionEncoder

and decoder.safetensors, of SamMaskDecoder with multimask_output=False and the prompts given as sparse embeddings,

    features            [images · side², hidden]
    prompts             [masks, hidden], picture_of_mask int64 [masks]
    logits, direction   [masks, 4 · side, 4 · side]
    gradient.features, gradient.prompts
    parameter.NAME, gradient.NAME   NAME as in SamModel, of those that one mask a prompt runs through

All is computed in float64 from weights and inputs that float32 holds, and stored as float32.
"""

import torch
from safetensors.torch import save_file
from transformers import SamConfig, SamMaskDecoderConfig, SamModel, SamPromptEncoderConfig, SamVisionConfig
from transformers.models.sam.modeling_sam import SamVisionEncoder

from library.cases import write_json
from library.random_weights import fill, random, stored

# 6 patches on a side: windows of 4 reach beyond the image.
ENCODERS = {
    "windows": dict(
        hidden_size=16, output_channels=12, num_hidden_layers=3, num_attention_heads=2, image_size=96, window_size=4,
        global_attn_indexes=[1], mlp_dim=24,
    ),
    "no_positions": dict(
        hidden_size=12, output_channels=8, num_hidden_layers=2, num_attention_heads=3, image_size=64, window_size=3,
        global_attn_indexes=[1], mlp_ratio=2.0, qkv_bias=False, use_abs_pos=False, use_rel_pos=False,
    ),
}
IMAGES = {"windows": 2, "no_positions": 1}
DECODER = dict(hidden_size=32, mlp_dim=48, num_hidden_layers=2, num_attention_heads=2, attention_downsample_rate=2, num_multimask_outputs=3)
SIDE, PROMPTS = 5, 3


def find_divisor(name, parameter):
    """Weights keep the variance of their input."""
    if "rel_pos" in name or "pos_embed" in name or name.endswith("bias"):
        return 2
    if "token" in name and "attn" not in name or "embed" in name and "patch" not in name:
        return 1
    return (parameter.shape[0] if "upscale_conv" in name else parameter[0].numel()) ** 0.5


def find_parameters(module, names):
    """Values and gradients."""
    parameters = {name: parameter for name, parameter in module.named_parameters() if name in names}
    result = {"parameter." + name: parameter for name, parameter in parameters.items()}
    result |= {"gradient." + name: parameter.grad for name, parameter in parameters.items() if parameter.grad is not None}
    return result


def encoder(name):
    config = SamVisionConfig(**ENCODERS[name])
    config._attn_implementation = "eager"
    module = SamVisionEncoder(config).double()
    fill(module, find_divisor)
    pixels = random(IMAGES[name], 3, config.image_size, config.image_size).requires_grad_()
    features = module(pixels).last_hidden_state.permute(0, 2, 3, 1).flatten(0, 2)
    direction = random(*features.shape)
    (features * direction).sum().backward()
    return {
        "pixels": pixels, "features": features, "direction": direction, "gradient.pixels": pixels.grad,
        **find_parameters(module, [name for name, _ in module.named_parameters()]),
    }


def decoder():
    hidden = DECODER["hidden_size"]
    model = SamModel(
        SamConfig(
            vision_config=SamVisionConfig(
                **ENCODERS["windows"] | dict(image_size=16 * SIDE, output_channels=hidden, num_pos_feats=hidden // 2)
            ).to_dict(),
            prompt_encoder_config=SamPromptEncoderConfig(hidden_size=hidden, image_size=16 * SIDE).to_dict(),
            mask_decoder_config=SamMaskDecoderConfig(**DECODER).to_dict(),
        ),
    ).double()
    fill(model, find_divisor)
    images = 2
    features = random(images * SIDE * SIDE, hidden).requires_grad_()
    prompts = random(images * PROMPTS, hidden).requires_grad_()
    positions = model.get_image_wide_positional_embeddings()
    _, dense = model.prompt_encoder(None, None, None, None)
    masks, _ = model.mask_decoder(
        image_embeddings=features.view(images, SIDE, SIDE, hidden).permute(0, 3, 1, 2),
        image_positional_embeddings=positions.expand(images, -1, -1, -1),
        sparse_prompt_embeddings=prompts.view(images, PROMPTS, 1, hidden),
        dense_prompt_embeddings=dense,
        multimask_output=False,
    )
    logits = masks.reshape(images * PROMPTS, 4 * SIDE, 4 * SIDE)
    direction = random(*logits.shape)
    (logits * direction).sum().backward()
    run = [
        name for name, parameter in model.named_parameters()
        if parameter.grad is not None and "hypernetworks_mlps" not in name or "hypernetworks_mlps.0." in name
    ]
    result = {
        "features": features, "prompts": prompts, "logits": logits, "direction": direction,
        "gradient.features": features.grad, "gradient.prompts": prompts.grad, **find_parameters(model, run),
    }
    positional = "shared_image_embedding.positional_embedding"
    result["parameter." + positional] = model.get_parameter(positional)
    result.pop("gradient." + positional, None)
    return stored(result) | {"picture_of_mask": torch.arange(images).repeat_interleave(PROMPTS)}


def make(tests):
    torch.manual_seed(0)
    folder = tests / "parity" / "data" / "sam"
    for name in ENCODERS:
        save_file(stored(encoder(name)), folder / f"{name}.safetensors")
    save_file(decoder(), folder / "decoder.safetensors")
    write_json(folder / "cases.json", {"encoders": ENCODERS, "decoder": DECODER, "side": SIDE}, indent=1)
