"""A folder for each case of families/: losses, logits, gradients and steps of transformers.

checkpoint/ in Hugging Face layout, conversations.json in LLaVA format with images/ (a video is a folder of PNG frames), case.json
(what the case is, settings, counts, and under `deviation` how far float32 is from float64) and expected.safetensors, which
transformers computes in float32 on the CPU:

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

A module of families/ states what its family has in addition. Large gradients, parameters and logits are stored in part; thin.py
has the rule.
"""

import torch
import transformers

import families
from library import deviations, thin, training
from library.cases import write_inputs, write_json

NAMES = list(families.CASES)
NEW_TOKENS = 12
SMALLEST_LEAD = 1e-3


def generate(family):
    case = family.case
    prompt = family.encode(next(record for record in case.samples if record["id"] == case.generate), turns=1)
    new_ids, lead = family.generate(family.load(), prompt, NEW_TOKENS)
    assert len(new_ids) == NEW_TOKENS, "the answer ended early: choose another seed"
    assert lead > SMALLEST_LEAD, f"the closest choice of a token has a lead of only {lead}: choose another seed"
    return {"generation.prompt_ids": family.stored_ids(prompt.input_ids), "generation.new_ids": new_ids}


def expected_tensors(family, samples, single, double):
    tensors = {"loss_float64": double.loss}
    for index, sample in enumerate(samples):
        tensors[f"sample.{index}.input_ids"] = family.stored_ids(sample.input_ids)
        tensors[f"sample.{index}.label_mask"] = sample.label_mask.to(torch.uint8)
        if sample.pixel_values is not None:
            tensors[f"sample.{index}.pixel_values"] = sample.pixel_values
    return tensors | single.tensors() | family.more_tensors(samples) | (generate(family) if family.case.generate else {})


def describe(case, samples, result):
    return {
        "name": case.name,
        "about": case.about,
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        **training.SETTINGS,
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


def make(name, data):
    family = families.find(name, data)
    folder = thin.empty_folder(data / name)
    with family.patched():
        family.write()
        write_inputs(family.case, folder)
        samples = family.open().encode_all()
        single = training.run(family.load(), samples)
        double = training.run(family.load(torch.float64), samples)
        deviation = deviations.compare(single, double)
        single = single.renamed(family.own_names)
        thin.save(expected_tensors(family, samples, single, double), folder / "expected.safetensors")
        description = describe(family.case, samples, single)
        description |= family.normalization() if family.has_normalization else {}
        write_json(folder / "case.json", description | family.describe(samples, single, deviation))
