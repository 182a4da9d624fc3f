"""Makes the data that the parity tests hold vlmtrain against: python make_reference.py [--out ../data] [--only CASE].

Each case becomes a folder: checkpoint/ in Hugging Face layout, conversations.json in LLaVA format with images/, case.json (what
the case is, settings, counts) and expected.safetensors (what transformers computes in float32 on the CPU):

    sample.I.input_ids      int64 [tokens]
    sample.I.label_mask     uint8 [tokens], 1 where the token is a label
    sample.I.pixel_values   float32 [tiles, 3, side, side], only with images; tiles of all images in order
    sample.I.logits         float32 [label tokens, vocabulary], at the positions before the labels
    loss                    float32 [], sum of the token losses of all samples / number of their label tokens
    loss_float64            float64 [], the same computed in float64
    gradient.NAME           gradient of that loss before clipping; absent where transformers has none
    step_losses, step_grad_norms   float32 [5], of AdamW steps on this batch; norms before clipping
    parameter.NAME          after these steps; absent where transformers has no gradient (the tensor did not change)
    generation.prompt_ids, generation.new_ids   int64, greedy, where the case generates

Large gradients, parameters and logits are stored in part; thin.py has the rule.
"""

import argparse
import json
import shutil
from pathlib import Path

import torch
import transformers
from transformers import AutoProcessor

from library import checkpoints
from library import deviations
from library import llava
from library import test_images
from library import thin
from library import training
from library.cases import CASES

NEW_TOKENS = 12
SMALLEST_LEAD = 1e-3


def write_inputs(case, folder):
    checkpoints.write(case.shape, folder / "checkpoint")
    for name, (width, height, seed, mode) in case.source_images.items():
        test_images.save(test_images.draw(width, height, seed, mode), folder / "images" / name)
    text = json.dumps(case.samples, indent=2, ensure_ascii=False)
    (folder / "conversations.json").write_text(text + "\n")


def expected_tensors(samples, result):
    tensors = {}
    for index, (sample, logits) in enumerate(zip(samples, result.sample_logits)):
        tensors[f"sample.{index}.input_ids"] = sample.input_ids
        tensors[f"sample.{index}.label_mask"] = sample.label_mask.to(torch.uint8)
        tensors[f"sample.{index}.logits"] = logits
        if sample.pixel_values is not None:
            tensors[f"sample.{index}.pixel_values"] = sample.pixel_values
    tensors["loss"] = result.loss
    tensors["step_losses"] = result.step_losses
    tensors["step_grad_norms"] = result.step_grad_norms
    tensors |= {f"gradient.{name}": value for name, value in result.gradients.items()}
    tensors |= {f"parameter.{name}": value for name, value in result.parameters.items() if name in result.gradients}
    return tensors


def generation_tensors(case, folder, processor):
    source = next(sample for sample in case.samples if sample["id"] == case.generate)
    inputs = llava.encode_prompt(processor, source, folder / "images")
    new_ids, lead = training.generate(folder / "checkpoint", inputs, NEW_TOKENS)
    assert len(new_ids) == NEW_TOKENS, "the answer ended early: choose another seed"
    assert lead > SMALLEST_LEAD, f"the closest choice of a token has a lead of only {lead}: choose another seed"
    return {"generation.prompt_ids": inputs["input_ids"][0], "generation.new_ids": new_ids}


def describe(case, samples, result):
    return {
        "name": case.name,
        "about": case.about,
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "learning_rate": training.LEARNING_RATE,
        "adam_betas": [0.9, 0.999],
        "adam_epsilon": 1e-8,
        "weight_decay": training.WEIGHT_DECAY,
        "max_grad_norm": training.MAX_GRAD_NORM,
        "steps": training.STEPS,
        "loss": result.loss.item(),
        "samples": [
            {
                "id": record["id"],
                "tokens": len(sample.input_ids),
                "label_tokens": int(sample.label_mask.sum()),
                "grids": sample.grids,
                "text": sample.text,
            }
            for record, sample in zip(case.samples, samples)
        ],
        "parameters_without_gradient": result.without_gradient,
        "generate": case.generate,
    }


def make(case, out):
    """Writes one case and returns its deviations."""
    folder = out / case.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_inputs(case, folder)

    checkpoint = folder / "checkpoint"
    processor = AutoProcessor.from_pretrained(checkpoint)
    samples = [llava.encode(processor, sample, folder / "images") for sample in case.samples]
    single = training.run(checkpoint, samples, torch.float32)
    double = training.run(checkpoint, samples, torch.float64)
    eager = training.run(checkpoint, samples, torch.float32, attention="eager")
    padded = training.padded_loss(checkpoint, samples, processor.tokenizer.pad_token_id)

    tensors = expected_tensors(samples, single) | {"loss_float64": double.loss}
    if case.generate:
        tensors |= generation_tensors(case, folder, processor)
    thin.save(tensors, folder / "expected.safetensors")
    text = json.dumps(describe(case, samples, single), indent=2, ensure_ascii=False)
    (folder / "case.json").write_text(text + "\n")
    return deviations.compare(single, double) | {
        "eager_loss": abs(eager.loss - single.loss).item(),
        "padded_batch_loss": abs(padded - single.loss).item(),
    }


def vision_positions():
    """Which row of the position table each patch of a full tile takes along one side; see data/README.md."""
    table = {}
    for side in (4, 6, 14, 16, 19, 24, 25, 26, 27, 32, 64):
        boundaries = torch.arange(1 / side, 1.0, 1 / side)
        fractions = torch.arange(side, dtype=torch.float32) * (1.0 / torch.tensor([side]))
        fractions = torch.clamp(fractions, max=1.0 - 1e-6)
        table[side] = torch.bucketize(fractions, boundaries, right=True).tolist()
    return table


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "data")
    parser.add_argument("--only", help="make only this case, and no deviations")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    deviation_by_case = {case.name: make(case, arguments.out) for case in CASES if arguments.only in (None, case.name)}
    if arguments.only:
        print(json.dumps(deviation_by_case, indent=2))
        return
    (arguments.out / "vision_positions.json").write_text(json.dumps(vision_positions()) + "\n")
    (arguments.out / "deviations.json").write_text(json.dumps(deviation_by_case, indent=1) + "\n")
    (arguments.out / "README.md").write_text(deviations.report(deviation_by_case))


if __name__ == "__main__":
    main()
