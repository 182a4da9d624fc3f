"""parity/data/tiny_vit/ of timm's TinyViT, with MobileSAM's neck.

Each CASE.safetensors is one encoder in float64 with random weights and batch norms of random, frozen statistics. Its
metadata has `config`, the keys of models::TinyVitConfig, and `every`: of tensors called gradient.* the file has each
`every`th element, counted through the flattened tensor.

    weights.NAME    float16, which is what they were rounded to; names are those of MobileSAM's image_encoder
    pixels          float16 [images, 3, side, side]
    features        [images · (side / 16)², channels]
    direction       of the same shape: gradients are those of sum(features · direction)
    gradient.NAME, gradient.pixels
"""

import json
import re

import torch
from safetensors.torch import save_file
from timm.models.tiny_vit import TinyVit
from torch import nn

SMALL = {
    "embed_dims": [8, 12, 20, 24], "depths": [2, 2, 2, 1], "num_heads": [2, 3, 5, 2], "window_sizes": [7, 3, 4, 3],
    "mlp_ratio": 2.5, "mbconv_expand_ratio": 3.0, "local_conv_size": 3, "last_merging_keeps_size": True,
    "out_channels": 16,
}
CASES = {
    # Maps of 20, 10, 5 and 5 positions a side, none of which its windows divide.
    "last_merging_keeps_size": (SMALL | {"image_size": 80}, 2, 1),
    # The same weights: maps of 12, 6, 3 and 3. Windows divide, are larger than, and equal them.
    "other_size": (SMALL | {"image_size": 48}, 3, 1),
    # As timm has it, every merging halves. Maps of 24, 12 and 6.
    "all_mergings_halve": ({
        "embed_dims": [6, 10, 18], "depths": [1, 1, 2], "num_heads": [1, 2, 3], "window_sizes": [7, 7, 6],
        "mlp_ratio": 4.0, "mbconv_expand_ratio": 4.0, "local_conv_size": 5, "last_merging_keeps_size": False,
        "out_channels": 12, "image_size": 96,
    }, 2, 1),
    # The third stage is a block of tiny_vit_5m_224. Maps of 52, 26 and 13.
    "block_of_5m": ({
        "embed_dims": [8, 16, 160], "depths": [1, 1, 1], "num_heads": [1, 2, 5], "window_sizes": [7, 7, 14],
        "mlp_ratio": 4.0, "mbconv_expand_ratio": 4.0, "local_conv_size": 3, "last_merging_keeps_size": False,
        "out_channels": 24, "image_size": 208,
    }, 1, 7),
}


class LayerNorm2d(nn.Module):
    """Over the channels of [images, channels, height, width]."""

    def __init__(self, channels):
        super().__init__()
        self.norm = nn.LayerNorm(channels, eps=1e-6)

    def forward(self, x):
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Encoder(nn.Module):
    def __init__(self, config):
        super().__init__()
        sizes = ["embed_dims", "depths", "num_heads", "window_sizes", "mlp_ratio", "mbconv_expand_ratio", "local_conv_size"]
        self.body = TinyVit(num_classes=0, drop_path_rate=0.0, **{key: config[key] for key in sizes})
        if config["last_merging_keeps_size"]:
            self.body.stages[-1].downsample.conv2.conv.stride = (1, 1)
        width, out = config["embed_dims"][-1], config["out_channels"]
        self.neck = nn.Sequential(
            nn.Conv2d(width, out, 1, bias=False), LayerNorm2d(out),
            nn.Conv2d(out, out, 3, padding=1, bias=False), LayerNorm2d(out),
        )

    def forward(self, pixels):
        return self.neck(self.body.forward_features(pixels)).permute(0, 2, 3, 1).flatten(0, 2)


def original_name(name):
    """Of a parameter or buffer of Encoder in MobileSAM's image_encoder; None: it is not needed there.

    timm calls layers stages, begins a stage with the merging that the original ends the one before with, and has
    another name for a Conv2d_BN's convolution and for those of the patch embedding.
    """
    if ".head." in name or name.endswith(".num_batches_tracked"):
        return None
    name = re.sub(r"^neck\.(\d)\.norm\.", r"neck.\1.", name)
    name = re.sub(r"^body\.", "", name)
    name = re.sub(r"^patch_embed\.conv([12])\.", lambda match: f"patch_embed.seq.{2 * int(match[1]) - 2}.", name)
    name = re.sub(r"^stages\.(\d+)\.downsample\.", lambda match: f"layers.{int(match[1]) - 1}.downsample.", name)
    name = re.sub(r"^stages\.", "layers.", name)
    return name.replace(".conv.weight", ".c.weight")


def random_values(name, value, generator):
    """Such that nothing is close to zero or saturates, in numbers of float16."""
    uniform = 2 * torch.rand(value.shape, generator=generator, dtype=torch.float64) - 1
    if name.endswith("running_var"):
        values = 1 + 0.5 * uniform
    elif value.dim() == 1:
        values = (1 if name.endswith("weight") else 0) + 0.5 * uniform
    elif name.endswith("attention_biases"):
        values = 2 * uniform
    else:
        values = uniform * (3 / value[0].numel()) ** 0.5
    return values.half().double()


def make_case(config, images, every):
    generator = torch.Generator().manual_seed(7)
    encoder = Encoder(config).double().eval()
    named = {original_name(name): value for name, value in encoder.state_dict(keep_vars=True).items()}
    named.pop(None, None)
    with torch.no_grad():
        for name, value in named.items():
            value.copy_(random_values(name, value, generator))
    side = config["image_size"]
    pixels = torch.randn(images, 3, side, side, generator=generator, dtype=torch.float64).half().double().requires_grad_()
    features = encoder(pixels)
    direction = torch.randn(features.shape, generator=generator, dtype=torch.float64).float()
    (features * direction).sum().backward()
    gradients = {f"gradient.{name}": value.grad for name, value in named.items() if value.grad is not None}
    gradients["gradient.pixels"] = pixels.grad
    return (
        {f"weights.{name}": value.detach().half() for name, value in named.items()}
        | {"pixels": pixels.detach().half(), "features": features.detach().float(), "direction": direction}
        | {name: value.flatten()[::every].float() for name, value in gradients.items()}
    )


def make(tests):
    for name, (config, images, every) in CASES.items():
        tensors = {key: value.clone().contiguous() for key, value in make_case(config, images, every).items()}
        path = tests / "parity" / "data" / "tiny_vit" / f"{name}.safetensors"
        save_file(tensors, path, {"config": json.dumps(config), "every": str(every)})
