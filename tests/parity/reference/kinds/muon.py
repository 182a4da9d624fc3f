"""muon/CASE.safetensors for each of NAMES: the checkpoint of a case of families/, trained with torch.optim.Muon.

Trains as training.run() does, but with torch.optim.Muon for every nn.Linear except the output projection, and torch.optim.AdamW for
the other parameters. The inputs are those in expected.safetensors, so no processor is needed. The file has

    step_losses, step_grad_norms   float32 [5], norms before clipping
    parameter.step_I.NAME          weights after step I of SAVED_STEPS

Large weights are stored in part; thin.py has the rule.

Needs transformers of requirements.txt, and torch of LibTorch's version, because the arithmetic of torch.optim.Muon is that version's:
PYTHONPATH=~/.cache/vlmtrain/libtorch-2.11.0.
"""

import torch
from safetensors.torch import load_file

from library import thin, training
from library.cases import read_json
from library.conversation import Encoded

NAMES = ["mixed_batch", "qwen2_5_vl_mixed"]
TORCH_VERSION = "2.11"
SAVED_STEPS = (1, 5)
TOLERANCE = 1e-6  # relative; between versions of torch


def idefics3_inputs(pixels):
    """Returns the inputs of tiles without padding."""
    tiles, _, height, width = pixels.shape
    return {"pixel_values": pixels[None], "pixel_attention_mask": torch.ones(1, tiles, height, width, dtype=torch.bool)}


def qwen_inputs(ids, pixels, position_ids, grids, config):
    """Returns the inputs of Qwen2.5-VL. `grids`: of images and videos as they come in the text."""
    inputs = {"position_ids": position_ids[:, None]}
    if not grids:
        return inputs
    grids = torch.tensor(grids)
    patches = pixels.flatten(1).split(grids.prod(1).tolist())
    media_ids = ids[(ids == config.image_token_id) | (ids == config.video_token_id)]
    num_tokens = grids.prod(1) // config.vision_config.spatial_merge_size**2
    assert len(media_ids) == num_tokens.sum()
    is_video = media_ids[num_tokens.cumsum(0) - 1] == config.video_token_id
    for pixels, grid, selected in (
        ("pixel_values", "image_grid_thw", ~is_video), ("pixel_values_videos", "video_grid_thw", is_video)
    ):
        if selected.any():
            inputs[pixels] = torch.cat([part for part, is_selected in zip(patches, selected) if is_selected])
            inputs[grid] = grids[selected]
    return inputs


def read_samples(folder, config):
    tensors = load_file(folder / "expected.safetensors")
    samples = []
    for index, description in enumerate(read_json(folder / "case.json")["samples"]):
        names = ("input_ids", "label_mask", "pixel_values", "position_ids")
        ids, labels, pixels, positions = (tensors.get(f"sample.{index}.{name}") for name in names)
        if config.model_type == "qwen2_5_vl":
            inputs = qwen_inputs(ids, pixels, positions, description["grids"], config)
        else:
            inputs = {} if pixels is None else idefics3_inputs(pixels)
        samples.append(Encoded(ids, labels.bool(), pixels, model_inputs=inputs))
    return samples


def check_first_step(samples, folder):
    """Raises AssertionError if loss or norm of the first step are not those of the reference with AdamW."""
    expected = load_file(folder / "expected.safetensors")
    result = training.run(training.load(folder / "checkpoint", torch.float32), samples)
    for name, actual in (("step_losses", result.step_losses), ("step_grad_norms", result.step_grad_norms)):
        error = abs(actual[0] / expected[name][0] - 1)
        print(f"{folder.name}: first of {name} with AdamW, relative difference from expected.safetensors: {error:.1e}")
        assert error <= TOLERANCE, f"{folder.name}: {name}"


def find_muon_parameters(model):
    """Returns the names of the weights of all Linears except the output projection."""
    output = model.get_output_embeddings()
    return {
        f"{name}.weight" for name, module in model.named_modules() if isinstance(module, torch.nn.Linear) and module is not output
    }


def make_optimizers(model):
    muon_names = find_muon_parameters(model)
    parameters = dict(model.named_parameters())
    muon = [parameter for name, parameter in parameters.items() if name in muon_names]
    others = [parameter for name, parameter in parameters.items() if name not in muon_names]
    assert len(muon) == len(muon_names)
    groups = [
        {"params": [p for p in others if p.dim() >= 2], "weight_decay": training.WEIGHT_DECAY},
        {"params": [p for p in others if p.dim() < 2], "weight_decay": 0.0},
    ]
    return [
        torch.optim.Muon(
            muon, lr=training.LEARNING_RATE, weight_decay=training.WEIGHT_DECAY, momentum=0.95, nesterov=True, ns_steps=5,
            adjust_lr_fn="match_rms_adamw",
        ),
        torch.optim.AdamW(groups, lr=training.LEARNING_RATE, betas=(0.9, 0.999), eps=1e-8, foreach=False),
    ]


def train(model, samples):
    """Returns the tensors of the file."""
    optimizers = make_optimizers(model)
    losses, norms, weights = [], [], {}
    for step in range(1, training.STEPS + 1):
        loss, _ = training.batch_loss(model, samples)
        model.zero_grad()
        loss.backward()
        losses.append(loss.detach())
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), training.MAX_GRAD_NORM))
        for optimizer in optimizers:
            optimizer.step()
        if step in SAVED_STEPS:
            weights |= {f"parameter.step_{step}.{name}": p.detach().clone() for name, p in model.named_parameters()}
    return {"step_losses": torch.stack(losses), "step_grad_norms": torch.stack(norms)} | weights


def make(name, data):
    assert torch.__version__.startswith(TORCH_VERSION), f"torch is {torch.__version__}; use {TORCH_VERSION}"
    folder = data / name
    model = training.load(folder / "checkpoint", torch.float32)
    samples = read_samples(folder, model.config)
    check_first_step(samples, folder)
    thin.save(train(model, samples), data / "muon" / f"{name}.safetensors")
