"""Does transformers load a checkpoint that vlmtrain wrote, and is it the one it should be?

    python check_round_trip.py CHECKPOINT_DIR                          loads, with every key in its place
    python check_round_trip.py CHECKPOINT_DIR --against ORIGINAL_DIR   and has the same bits in every weight
    python check_round_trip.py CHECKPOINT_DIR --expected CASE_DIR      and is where transformers' own 5 AdamW steps end

Exit code 0: yes; 1: no, with the reasons on stderr.
"""

import argparse
import json
import sys
from pathlib import Path

import torch
from PIL import Image
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText, AutoProcessor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the folder of library/

from library import thin

IMAGE = Image.linear_gradient("L").resize((90, 60)).convert("RGB")
QUESTION = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is shown in 2 words?"}]}]

# Twenty times the difference between float32 and float64 in transformers itself; see ../../data/README.md.
LARGEST_MEAN_DIFFERENCE = 4e-6
# AdamW moves an element whose gradient is next to nothing by up to the learning rate, 1e-3, in either direction.
LARGEST_NORM_OF_DIFFERENCE = 4e-3


def load(folder):
    """Returns the model, the processor and the problems with the keys."""
    model, info = AutoModelForImageTextToText.from_pretrained(folder, dtype="auto", output_loading_info=True)
    problems = [f"{folder}: {kind}: {sorted(map(str, keys))}" for kind, keys in info.items() if keys]
    return model.eval(), AutoProcessor.from_pretrained(folder), problems


def inputs(processor):
    prompt = processor.apply_chat_template(QUESTION, add_generation_prompt=True)
    return processor(text=[prompt], images=[[IMAGE]], return_tensors="pt")


def logits(model, batch):
    with torch.no_grad():
        return model(**batch, use_cache=False).logits


def difference_of_weights(model, original):
    ours, theirs = model.state_dict(), original.state_dict()
    problems = [f"only in one of the two: {name}" for name in sorted(ours.keys() ^ theirs.keys())]
    for name in sorted(ours.keys() & theirs.keys()):
        a, b = ours[name], theirs[name]
        if a.dtype != b.dtype or a.shape != b.shape:
            problems.append(f"{name}: {a.dtype} {list(a.shape)} instead of {b.dtype} {list(b.shape)}")
        elif not torch.equal(a, b):
            problems.append(f"{name}: differs by up to {(a.double() - b.double()).abs().max():.1e}")
    return problems


def difference_of_use(model, processor, original, original_processor):
    ours, theirs = inputs(processor), inputs(original_processor)
    for name in theirs:
        if not torch.equal(ours[name], theirs[name]):
            return [f"the processors make different {name}"]
    if not torch.equal(logits(model, ours), logits(original, theirs)):
        return ["the logits differ"]
    return []


def difference_from_steps(model, case):
    """Key biases are left out: their true gradient is zero, and AdamW makes steps of the rounding noise."""
    expected = load_file(case / "expected.safetensors")
    projections = thin.stored_projections(expected)
    unmoved = json.loads((case / "case.json").read_text())["parameters_without_gradient"]
    start = AutoModelForImageTextToText.from_pretrained(case / "checkpoint", dtype=torch.float32).state_dict()
    problems = []
    for name, value in model.named_parameters():
        if name.endswith("self_attn.k_proj.bias"):
            continue
        key = f"parameter.{name}"
        target = thin.part(start[name]) if name in unmoved else expected[key].flatten()
        mean = (thin.part(value).double() - target.double()).abs().mean().item()
        if not mean <= LARGEST_MEAN_DIFFERENCE:
            problems.append(f"{name}: differs by {mean:.1e} on average")
        stored = thin.projections(start[name]) if name in unmoved else projections[key]
        norm = thin.projection_difference(value, stored)
        if not norm <= LARGEST_NORM_OF_DIFFERENCE:
            problems.append(f"{name}: differs by {norm:.1e} as a whole")
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--expected", type=Path)
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    model, processor, problems = load(arguments.checkpoint)
    logits(model, inputs(processor))
    if arguments.against:
        original, original_processor, more = load(arguments.against)
        problems += more + difference_of_weights(model, original)
        problems += difference_of_use(model, processor, original, original_processor)
    if arguments.expected:
        problems += difference_from_steps(model, arguments.expected)
    for problem in problems:
        print(problem, file=sys.stderr)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
