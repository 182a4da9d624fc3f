"""Runs one cell of bench/compare_transformers.py with transformers and PEFT and prints one JSON line.

    python bench/peer_step.py --config DIR --kind lora --samples 4 --tokens 1408 --image-side 336
        --image-tokens 576 --counter libvlmtrain_step_cost.so

Runs on the virtual GPU. The model has the sizes of DIR/config.json and no values. A few optimizer steps of two
micro-batches run as in transformers' Trainer with bf16: autocast, SDPA, no recomputation, clipping, then fused AdamW or
bitsandbytes' 8-bit AdamW. The last step is counted.
"""

import argparse
import ctypes
import json
import math
from pathlib import Path

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForImageTextToText, masking_utils, vision_utils
from transformers.models.qwen3_vl import modeling_qwen3_vl

# Share of the text in each step: changing sizes fragment memory, as in a plan's dry run.
STEPS = [0.6, 1.0, 0.3, 1.0]
MICRO_BATCHES = 2
LORA_RANK = 16
KINDS = ["lora", "nf4", "full-8bit"]
QWEN_FAMILIES = ("qwen2_5_vl", "qwen3_vl", "qwen3_5")
ATEN = torch.library.Library("aten", "IMPL")


class StepCost(ctypes.Structure):
    """The struct of bench/step_cost.cpp."""

    _fields_ = [("launches", ctypes.c_int64), ("launches_on_gpu", ctypes.c_int64), ("bytes_moved", ctypes.c_double)]


class StepCounter:
    """A context manager that counts the GPU work of its block."""

    def __init__(self, library):
        self.library = ctypes.CDLL(str(library.resolve()))
        self.library.vlmtrain_step_cost_begin.restype = ctypes.c_bool
        self.cost = StepCost()

    def __enter__(self):
        if not self.library.vlmtrain_step_cost_begin():
            raise SystemExit("peer_step: not on the virtual GPU; bench/compare_transformers.py starts it there")
        return self.cost

    def __exit__(self, *_):
        self.library.vlmtrain_step_cost_end(ctypes.byref(self.cost))


class PatchProjection(nn.Module):
    """A convolution whose stride equals its kernel, as a matrix product. The virtual GPU has no cuDNN, and without it
    PyTorch would convolve the patches one by one."""

    def __init__(self, convolution):
        super().__init__()
        self.kernel = convolution.kernel_size
        self.weight = convolution.weight
        self.bias = convolution.bias

    def forward(self, pixels):
        count, channels, *sides = pixels.shape
        grid = [side // size for side, size in zip(sides, self.kernel)]
        split = [length for pair in zip(grid, self.kernel) for length in pair]
        axes = range(2, 2 + 2 * len(grid))
        patches = pixels.reshape(count, channels, *split).permute(0, *axes[::2], 1, *axes[1::2])
        patches = patches.reshape(count, math.prod(grid), channels * math.prod(self.kernel))
        projected = nn.functional.linear(patches, self.weight.flatten(1), self.bias)
        return projected.transpose(1, 2).reshape(count, -1, *grid)


def replace_modules(model, kind, make):
    """Replaces every module of a kind with make(module, name)."""
    for name, module in list(model.named_modules()):
        if isinstance(module, kind):
            model.set_submodule(name, make(module, name))


def frozen_in_nf4(linear):
    import bitsandbytes

    weight = torch.empty(linear.weight.shape, dtype=torch.bfloat16)
    quantized = bitsandbytes.nn.Linear4bit(
        linear.in_features, linear.out_features, linear.bias is not None,
        compute_dtype=torch.bfloat16, quant_type="nf4", device="meta",
    )
    quantized.weight = bitsandbytes.nn.Params4bit(weight, requires_grad=False, quant_type="nf4", module=quantized).to("cuda")
    return quantized


def to_gpu(model):
    """Allocates parameters that have no memory yet; shared weights stay shared."""
    for module in model.modules():
        if any(tensor.is_meta for tensor in [*module.parameters(recurse=False), *module.buffers(recurse=False)]):
            module.to_empty(device="cuda", recurse=False)
    model.tie_weights()
    torch.cuda.empty_cache()


def with_adapters(model):
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(r=LORA_RANK, lora_alpha=2 * LORA_RANK, target_modules="all-linear"))


def make_model(config, kind):
    """LoRA on frozen weights in bf16 or NF4 with adapters in fp32, or all weights trained in fp32."""
    frozen_dtype = torch.float32 if kind == "full-8bit" else torch.bfloat16
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config, dtype=frozen_dtype, attn_implementation="sdpa")
    replace_modules(model, (nn.Conv2d, nn.Conv3d), lambda module, _: PatchProjection(module))
    if kind == "nf4":
        replace_modules(model, nn.Linear, lambda module, name: module if name == "lm_head" else frozen_in_nf4(module))
    to_gpu(model)
    return (model if kind == "full-8bit" else with_adapters(model)).train()


def make_optimizer(model, kind):
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if kind != "full-8bit":
        return torch.optim.AdamW(trained, lr=1e-4, fused=True)
    import bitsandbytes

    return bitsandbytes.optim.AdamW8bit(trained, lr=1e-5)


def square_images(config, samples, side):
    return {"pixel_values": torch.zeros(samples, config.vision_config.num_channels, side, side)}


def qwen_images(config, samples, side):
    """Returns inputs with the values derived from the grid computed on the host, which transformers allows: values read
    from the virtual GPU are zeros."""
    vision = config.vision_config
    grid = torch.tensor([[1, side // vision.patch_size, side // vision.patch_size]] * samples)
    elements = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
    return {
        "pixel_values": torch.zeros(int(grid.prod(-1).sum()), elements),
        "image_grid_thw": grid,
        "image_position_ids": vision_utils.get_vision_position_ids(grid, vision.spatial_merge_size),
        "image_cu_seqlens": vision_utils.get_vision_cu_seqlens(grid),
    }


def qwen2_5_windows(config, grid):
    vision = config.vision_config
    window_index, window_lengths = vision_utils.get_vision_window_index(
        grid, vision.spatial_merge_size, vision.window_size, vision.patch_size
    )
    return {"image_window_index": window_index, "image_cu_window_seqlens": window_lengths}


def qwen3_table_entries(config, grid):
    """Returns the entries of the position table around each patch, and their weights."""
    vision = config.vision_config
    indices, weights = vision_utils.get_vision_interpolation_indices_and_weights(
        grid,
        math.isqrt(vision.num_position_embeddings),
        align_corners=True,
        spatial_merge_size=vision.spatial_merge_size,
    )
    return {"image_interp_indices": indices, "image_interp_weights": weights}


def gemma4_images(config, samples, side):
    """Returns patches and their positions, without padding. Without a tower, a patch is a token."""
    vision = config.vision_config
    patch_side = vision.patch_size * (vision.pooling_kernel_size if config.model_type == "gemma4_unified" else 1)
    cells = side // patch_side
    positions = torch.cartesian_prod(torch.arange(cells), torch.arange(cells)).flip(-1)
    features = 3 * patch_side**2
    return {
        "pixel_values": torch.zeros(samples, cells**2, features),
        "image_position_ids": positions.repeat(samples, 1, 1),
    }


def make_batch(config, samples, tokens, image_side):
    """Samples of one length, so that nothing is padded and no padding mask is needed."""
    ids = torch.ones(samples, tokens, dtype=torch.long)
    batch = {"input_ids": ids, "labels": ids}
    if config.model_type in ("gemma4", "gemma4_unified"):
        return batch | gemma4_images(config, samples, image_side) | {"mm_token_type_ids": ids}
    if config.model_type not in QWEN_FAMILIES:
        batch |= square_images(config, samples, image_side)
        # The model builds its masks from these: the tokens of an image attend to each other.
        return batch | {"token_type_ids": ids} if config.model_type == "gemma3" else batch
    images = qwen_images(config, samples, image_side)
    by_grid = qwen2_5_windows if config.model_type == "qwen2_5_vl" else qwen3_table_entries
    positions = torch.arange(tokens).repeat(3, samples, 1)
    return batch | images | by_grid(config, images["image_grid_thw"]) | {"position_ids": positions}


ON_HOST = ("image_grid_thw", "image_cu_seqlens", "image_cu_window_seqlens")  # read by the host


def on_gpu(batch):
    return {
        name: tensor if name in ON_HOST else tensor.pin_memory().to("cuda", non_blocking=True)
        for name, tensor in batch.items()
    }


def train_step(model, optimizer, batch):
    for _ in range(MICRO_BATCHES):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(**on_gpu(batch), use_cache=False).loss
        (loss / MICRO_BATCHES).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def tensor_bytes(tensors):
    return sum(tensor.nbytes for tensor in tensors)


def quantization_scales(model):
    """Returns the tensors that bitsandbytes keeps next to its 4-bit weights."""
    for parameter in model.parameters():
        if state := getattr(parameter, "quant_state", None):
            yield from (state.absmax, state.code, state.offset, state.state2.absmax, state.state2.code)


def static_bytes(model, optimizer):
    """Returns the bytes of weights, gradients and optimizer states."""
    trained = [parameter for parameter in model.parameters() if optimizer.state.get(parameter)]
    states = [value for state in optimizer.state.values() for value in state.values()]
    on_gpu = [value for value in states if isinstance(value, torch.Tensor) and value.is_cuda]
    weights = [*model.parameters(), *quantization_scales(model)]
    return tensor_bytes(weights) + tensor_bytes(trained) + tensor_bytes(on_gpu)


def leave_cudnn_out():
    """Disables cuDNN, which does not run on the virtual GPU."""
    torch.backends.cudnn.enabled = False
    torch.backends.cuda.enable_cudnn_sdp(False)


def take_batches_as_unpacked():
    """Skips the search for packed samples. transformers reads positions from the GPU to find them; the virtual GPU
    returns zeros, which look like packs, and the resulting masks would disable flash attention."""
    masking_utils.find_packed_sequence_indices = lambda _: None


def add_features_at_known_count():
    """Replaces the boolean masks of Qwen3-VL's DeepStack. It gathers, adds and scatters features by a mask, for which
    PyTorch reads the number of selected positions from the GPU; the virtual GPU returns zero. Here the number of features
    gives the number of positions. The positions come from one nonzero_static instead of two nonzero, which saves a few
    launches; copy, gather, addition and scatter are as in transformers."""

    def add_features(_, hidden_states, visual_pos_masks, visual_embeds):
        samples, places = torch.nonzero_static(visual_pos_masks, size=visual_embeds.shape[0]).unbind(1)
        hidden_states = hidden_states.clone()
        sums = hidden_states[samples, places, :] + visual_embeds.to(hidden_states.dtype)
        hidden_states[samples, places, :] = sums
        return hidden_states

    modeling_qwen3_vl.Qwen3VLTextModel._deepstack_process = add_features


def name_lengths_to_attention():
    """Passes the sequence lengths to SDPA's memory-efficient kernel. SDPA uses it if there is a mask (Gemma 3's images)
    and omits the lengths, which the counter reads. The call is the same: without packs they are the tensors' lengths."""

    def attend(query, key, value, bias, with_sums, dropout_p=0.0, is_causal=False, *, scale=None):
        query, key, value = (tensor.transpose(1, 2) for tensor in (query, key, value))
        output, sums, seed, offset, *_ = torch.ops.aten._efficient_attention_forward(
            query, key, value, bias, None, None, query.size(1), key.size(1), dropout_p, int(is_causal), with_sums,
            scale=scale,
        )  # fmt: skip
        return output.transpose(1, 2), sums, seed, offset

    ATEN.impl("_scaled_dot_product_efficient_attention", attend, "CUDA")


def solve_by_copying():
    """Replaces the triangular solve of gated delta nets by a copy of the right-hand side. The virtual GPU lacks the
    library. The real solve allocates the same result, launches at least one kernel and also reads the matrix."""

    def solve(_, right_hand_side, *, upper, left=True, unitriangular=False):
        return right_hand_side.clone()

    ATEN.impl("linalg_solve_triangular", solve, "CUDA")


def measure(arguments):
    leave_cudnn_out()
    solve_by_copying()
    take_batches_as_unpacked()
    add_features_at_known_count()
    name_lengths_to_attention()
    config = AutoConfig.from_pretrained(arguments.config)
    model = make_model(config, arguments.kind)
    optimizer = make_optimizer(model, arguments.kind)
    image_tokens = arguments.image_tokens
    text = arguments.tokens - image_tokens
    batches = [
        make_batch(config, arguments.samples, image_tokens + int(share * text), arguments.image_side)
        for share in STEPS
    ]
    for batch in batches[:-1]:
        train_step(model, optimizer, batch)
    with StepCounter(arguments.counter) as cost:
        train_step(model, optimizer, batches[-1])
    allocated = torch.cuda.max_memory_allocated()
    static = static_bytes(model, optimizer)
    return {
        "reserved_peak_bytes": torch.cuda.max_memory_reserved(),
        "allocated_peak_bytes": allocated,
        "static_bytes": static,
        "above_static_bytes": allocated - static,
        "launches": cost.launches,
        "launches_on_card": cost.launches_on_gpu,
        "bytes_moved": int(cost.bytes_moved),
        "trained_parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, required=True, help="folder with config.json")
    parser.add_argument("--kind", choices=KINDS, required=True)
    parser.add_argument("--samples", type=int, required=True, help="samples of a micro-batch")
    parser.add_argument("--tokens", type=int, required=True, help="tokens of a sample, image tokens included")
    parser.add_argument("--image-side", type=int, required=True, help="side of the sample's image, in pixels")
    parser.add_argument("--image-tokens", type=int, required=True, help="number of image features")
    parser.add_argument("--counter", type=Path, required=True, help="libvlmtrain_step_cost.so")
    print(json.dumps(measure(parser.parse_args())))


if __name__ == "__main__":
    main()
