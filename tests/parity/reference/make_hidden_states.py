"""Makes ../data/hidden_states.safetensors of the checkpoints there: python make_hidden_states.py

Of the first sample of each of CASES, in float32:

    CASE.text_block.I    [tokens, hidden], after block I of the language model; the last block's is missing, since transformers
                         hands out what the final norm makes of it
    CASE.final           [tokens, hidden], after the final norm
    CASE.dense           [patches, width], what enters the projector, in the order of the patches of the pixels
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoProcessor
from transformers.vision_utils import get_vision_window_index

from library import llava
from library import qwen_format
from library import training
from make_qwen_reference import VISION_2_5

DATA = Path(__file__).parent.parent / "data"
CASES = ["full_heads_untied_tiles", "qwen2_5_vl_windows"]


def in_patch_order(model, dense, inputs):
    """Qwen2.5-VL's tower has the tokens of a window side by side."""
    if "image_grid_thw" not in inputs:
        return dense.flatten(0, -2)
    tower = model.model.visual
    order, _ = get_vision_window_index(
        inputs["image_grid_thw"], spatial_merge_size=tower.spatial_merge_size, window_size=tower.window_size,
        patch_size=tower.patch_size, kwargs={},
    )
    return dense.view(len(order), -1)[torch.argsort(order)].view_as(dense)


def states(case):
    folder = DATA / case
    record = json.loads((folder / "conversations.json").read_text())[0]
    processor = AutoProcessor.from_pretrained(folder / "checkpoint")
    model = training.load(folder / "checkpoint", torch.float32)
    if case.startswith("qwen"):
        sample = qwen_format.encode(processor, model, record, folder / "images", VISION_2_5, None)
        projector = model.model.visual.merger
    else:
        sample = llava.encode(processor, record, folder / "images")
        projector = model.model.connector
    seen = []
    projector.register_forward_pre_hook(
        lambda module, arguments, named: seen.append((*arguments, *named.values())[0]), with_kwargs=True
    )
    inputs = training.forward_inputs(sample, torch.float32)
    with torch.no_grad():
        hidden = model(**inputs, use_cache=False, output_hidden_states=True).hidden_states
    tensors = {f"{case}.text_block.{index}": state[0] for index, state in enumerate(hidden[1:-1])}
    return tensors | {f"{case}.final": hidden[-1][0], f"{case}.dense": in_patch_order(model, seen[0], inputs)}


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    tensors = {name: value for case in CASES for name, value in states(case).items()}
    save_file({name: value.clone().contiguous() for name, value in tensors.items()}, DATA / "hidden_states.safetensors")
    print({name: list(value.shape) for name, value in tensors.items()})


if __name__ == "__main__":
    main()
