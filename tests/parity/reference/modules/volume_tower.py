"""parity/data/volume_tower/: what MONAI's ViT computes from small random weights.

cases.json has the configurations, by name, under the keys of vlmtrain's vision_config. NAME.safetensors holds

    volumes             [rows, channels, x, y, z]
    features            [rows · patches, hidden], volume by volume, without those of the class token
    direction           like features: gradients are those of (features · direction).sum()
    gradient.volumes
    parameter.NAME, gradient.NAME   NAME as in MONAI's ViT

and of "perceptron", whose patch embedding is a Linear over a patch's values with the channels fastest, no gradients of it.
All is computed in float64 from weights and inputs that float32 holds, and stored as float32.
"""

import torch
from monai.networks.nets import ViT
from safetensors.torch import save_file

from library.cases import write_json
from library.random_weights import fill, random, stored

CASES = {
    "learned": dict(
        hidden_size=24, intermediate_size=40, num_hidden_layers=3, num_attention_heads=3, num_channels=1,
        image_size=[8, 12, 16], patch_size=4, positions="learned", class_token=False, qkv_bias=False,
    ),
    "class_token": dict(
        hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_channels=2,
        image_size=[8, 8, 8], patch_size=4, positions="learned", class_token=True, qkv_bias=False,
    ),
    "qkv_bias": dict(
        hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_channels=1,
        image_size=[8, 8, 12], patch_size=4, positions="learned", class_token=False, qkv_bias=True,
    ),
    "perceptron": dict(
        hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, num_channels=2,
        image_size=[8, 8, 8], patch_size=4, positions="learned", class_token=False, qkv_bias=False,
    ),
}
ROWS = 2


def find_divisor(name, parameter):
    """Weights keep the variance of their input."""
    is_offset = name.endswith("bias") or "position" in name or "cls_token" in name
    return 2 if is_offset else parameter[0].numel() ** 0.5


def case(name):
    sizes = CASES[name]
    module = ViT(
        in_channels=sizes["num_channels"], img_size=sizes["image_size"], patch_size=sizes["patch_size"],
        hidden_size=sizes["hidden_size"], mlp_dim=sizes["intermediate_size"], num_layers=sizes["num_hidden_layers"],
        num_heads=sizes["num_attention_heads"], proj_type="perceptron" if name == "perceptron" else "conv",
        classification=sizes["class_token"], qkv_bias=sizes["qkv_bias"],
    ).double()
    fill(module, find_divisor)
    captured = []
    module.norm.register_forward_hook(lambda _module, _inputs, output: captured.append(output))
    volumes = random(ROWS, sizes["num_channels"], *sizes["image_size"]).float().double().requires_grad_()
    module(volumes)
    features = captured[0]
    if sizes["class_token"]:
        features = features[:, 1:]
    features = features.flatten(0, 1)
    direction = random(*features.shape).float().double()
    (features * direction).sum().backward()
    tensors = {"volumes": volumes, "features": features, "direction": direction, "gradient.volumes": volumes.grad}
    for parameter_name, parameter in module.named_parameters():
        if "cross_attn" in parameter_name or "classification_head" in parameter_name:
            continue
        tensors["parameter." + parameter_name] = parameter
        if parameter.grad is not None:
            tensors["gradient." + parameter_name] = parameter.grad
    return stored(tensors)


def make(tests):
    torch.manual_seed(0)
    folder = tests / "parity" / "data" / "volume_tower"
    for name in CASES:
        save_file(case(name), folder / f"{name}.safetensors")
    write_json(folder / "cases.json", CASES, indent=1)
