"""Does peft load an adapter that vlmtrain wrote, and is it the one it should be?

    python check_adapter_round_trip.py ADAPTER_DIR                       loads, with every key in its place and every bit
    python check_adapter_round_trip.py ADAPTER_DIR --save FOLDER         and saves it again as peft does, with the same bits
    python check_adapter_round_trip.py ADAPTER_DIR --merged CHECKPOINT   and vlmtrain's merged checkpoint is peft's

The adapter's base_model_name_or_path must be a folder. Exit code 0: yes; 1: no, with the reasons on stderr.
"""

import argparse
import json
import sys
import warnings
from pathlib import Path

import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText

import check_round_trip

MERGED_TOLERANCE = 1e-6
LOGITS_TOLERANCE = 1e-4


def differences(actual, expected, place):
    problems = [f"{place}: only in one of the two: {name}" for name in sorted(actual.keys() ^ expected.keys())]
    for name in sorted(actual.keys() & expected.keys()):
        # peft widens a 16-bit adapter of a float32 base.
        if not torch.equal(actual[name].double(), expected[name].double()):
            problems.append(f"{place}: {name} differs")
    return problems


def as_saved(model):
    """The adapter's tensors in the model, under the names that a file has."""
    tensors = {}
    for name, value in model.state_dict().items():
        if "modules_to_save" in name:
            tensors[name.replace(".modules_to_save.default.", ".")] = value
        elif "lora_" in name:
            name = name.replace(".lora_magnitude_vector.default.weight", ".lora_magnitude_vector")
            tensors[name.replace(".default.", ".")] = value
    return tensors


def load_with_peft(folder, base):
    """Returns the adapted model and the problems with its keys."""
    model = AutoModelForImageTextToText.from_pretrained(base, dtype="auto")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # Otherwise peft widens 16-bit adapters to float32.
        adapted = PeftModel.from_pretrained(model, folder, autocast_adapter_dtype=False)
    # peft warns of missing keys, and drops unexpected ones, which the comparison of bits finds.
    problems = [f"peft: {w.message}" for w in caught if "missing adapter keys" in str(w.message)]
    return adapted.eval(), problems


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("adapter", type=Path)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--merged", type=Path)
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    base = json.loads((arguments.adapter / "adapter_config.json").read_text())["base_model_name_or_path"]
    written = load_file(arguments.adapter / "adapter_model.safetensors")
    model, problems = load_with_peft(arguments.adapter, base)
    problems += differences(as_saved(model), written, "in peft's model")
    processor = check_round_trip.AutoProcessor.from_pretrained(base)
    batch = check_round_trip.inputs(processor)
    logits = check_round_trip.logits(model, batch)

    # transformers loads an adapter's folder by itself, with the base that it names; but 5.23 finds neither DoRA's
    # lora_magnitude_vector nor modules_to_save in what peft itself saves.
    if all("lora_" in name and not name.endswith("lora_magnitude_vector") for name in written):
        direct = AutoModelForImageTextToText.from_pretrained(arguments.adapter, dtype="auto").eval()
        if not torch.equal(check_round_trip.logits(direct, batch), logits):
            problems.append("the logits of transformers' own loading differ")
    if arguments.save:
        model.save_pretrained(arguments.save)
        problems += differences(load_file(arguments.save / "adapter_model.safetensors"), written, "saved by peft")
    if arguments.merged:
        merged, _, more = check_round_trip.load(arguments.merged)
        problems += more
        own = model.merge_and_unload().state_dict()
        for name, value in merged.state_dict().items():
            difference = (value.double() - own[name].double()).abs().max().item()
            if not difference <= MERGED_TOLERANCE * own[name].abs().max().item():
                problems.append(f"merged {name}: differs by {difference:.1e}")
        difference = (check_round_trip.logits(merged, batch) - logits).abs().max().item()
        if not difference <= LOGITS_TOLERANCE:
            problems.append(f"the logits of the merged checkpoint differ by {difference:.1e}")
    for problem in problems:
        print(problem, file=sys.stderr)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
