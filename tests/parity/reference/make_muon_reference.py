"""Makes ../data/muon/CASE.safetensors for each of CASES: python make_muon_reference.py [--out ../data/muon] [--only CASE].

Trains the stored checkpoint as training.run() does, but with torch.optim.Muon for every nn.Linear except the output projection, and
torch.optim.AdamW for the other parameters. The inputs are those in expected.safetensors, so no processor is needed. The file has

    step_losses, step_grad_norms   float32 [5], norms before clipping
    parameter.step_I.NAME          weights after step I of SAVED_STEPS

Large weights are stored in part; thin.py has the rule.

Needs transformers of requirements.txt, and torch of LibTorch's version, because the arithmetic of torch.optim.Muon is that version's:
PYTHONPATH=~/.cache/vlmtrain/libtorch-2.11.0.
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

from library import thin
from library import training

DATA = Path(__file__).parent.parent / "data"
CASES = ["mixed_batch", "qwen2_5_vl_mixed"]
TORCH_VERSION = "2.11"
SAVED_STEPS = (1, 5)
TOLERANCE = 1e-6  # relative; between versions of torch


@dataclass
class StoredSample:
    """A sample of expected.safetensors, with the attributes that training.forward_inputs() reads."""

    input_ids: torch.Tensor
    label_mask: torch.Tensor
    pixel_values: torch.Tensor | None

    @property
    def pixel_attention_mask(self):
        """Returns a mask of tiles without padding."""
        tiles, _, height, width = self.pixel_values.shape
        return torch.ones(tiles, height, width, dtype=torch.bool)


@dataclass
class StoredQwenSample(StoredSample):
    model_inputs: dict


def read_sample(tensors, index):
    prefix = f"sample.{index}."
    return StoredSample(
        input_ids=tensors[prefix + "input_ids"],
        label_mask=tensors[prefix + "label_mask"].bool(),
        pixel_values=tensors.get(prefix + "pixel_values"),
    )


def add_qwen_inputs(sample, position_ids, grids, config):
    """Returns the sample with the inputs of Qwen2.5-VL. `grids`: of images and videos as they come in the text."""
    inputs = {"position_ids": position_ids[:, None]}
    if grids:
        grids = torch.tensor(grids)
        patches = sample.pixel_values.flatten(1).split(grids.prod(1).tolist())
        is_media = (sample.input_ids == config.image_token_id) | (sample.input_ids == config.video_token_id)
        num_tokens = grids.prod(1) // config.vision_config.spatial_merge_size**2
        media_ids = sample.input_ids[is_media]
        assert len(media_ids) == num_tokens.sum()
        is_video = media_ids[num_tokens.cumsum(0) - 1] == config.video_token_id
        for pixels, grid, selected in (
            ("pixel_values", "image_grid_thw", ~is_video), ("pixel_values_videos", "video_grid_thw", is_video)
        ):
            if selected.any():
                inputs[pixels] = torch.cat([part for part, is_selected in zip(patches, selected) if is_selected])
                inputs[grid] = grids[selected]
    return StoredQwenSample(sample.input_ids, sample.label_mask, sample.pixel_values, inputs)


def read_samples(folder, config):
    tensors = load_file(folder / "expected.safetensors")
    descriptions = json.loads((folder / "case.json").read_text())["samples"]
    samples = [read_sample(tensors, index) for index in range(len(descriptions))]
    if config.model_type == "qwen2_5_vl":
        samples = [
            add_qwen_inputs(sample, tensors[f"sample.{index}.position_ids"], description["grids"], config)
            for index, (sample, description) in enumerate(zip(samples, descriptions))
        ]
    return samples


def check_first_step(samples, folder):
    """Raises AssertionError if loss or norm of the first step are not those of the reference with AdamW."""
    expected = load_file(folder / "expected.safetensors")
    result = training.run(folder / "checkpoint", samples, torch.float32)
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


def make(case, out):
    folder = DATA / case
    model = training.load(folder / "checkpoint", torch.float32)
    samples = read_samples(folder, model.config)
    check_first_step(samples, folder)
    tensors = train(model, samples)
    path = out / f"{case}.safetensors"
    thin.save(tensors, path)
    print(f"{path}: {path.stat().st_size:,} bytes, losses {tensors['step_losses'].tolist()}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=DATA / "muon")
    parser.add_argument("--only", help="make only this case")
    arguments = parser.parse_args()
    assert torch.__version__.startswith(TORCH_VERSION), f"torch is {torch.__version__}; use {TORCH_VERSION}"
    arguments.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for case in CASES:
        if arguments.only in (None, case):
            make(case, arguments.out)


if __name__ == "__main__":
    main()
