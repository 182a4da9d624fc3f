"""hidden_states.safetensors: of the first sample of each of CASES, in float32:

    CASE.text_block.I    [tokens, hidden], after block I of the language model; the last block's is missing, since transformers
                         hands out what the final norm makes of it
    CASE.final           [tokens, hidden], after the final norm
    CASE.dense           [patches, width], what enters the projector, in the order of the patches of the pixels
"""

import torch
from safetensors.torch import save_file
from transformers.vision_utils import get_vision_window_index

import families
from library import training

NAMES = ["hidden_states"]
CASES = {"full_heads_untied_tiles": "connector", "qwen2_5_vl_windows": "visual.merger"}  # name -> its projector


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


def states(name, data):
    family = families.find(name, data).open()
    model = family.load()
    seen = []
    model.model.get_submodule(CASES[name]).register_forward_pre_hook(
        lambda module, arguments, named: seen.append((*arguments, *named.values())[0]), with_kwargs=True
    )
    inputs = training.forward_inputs(family.encode(family.case.samples[0]), torch.float32)
    with torch.no_grad():
        hidden = model(**inputs, use_cache=False, output_hidden_states=True).hidden_states
    tensors = {f"{name}.text_block.{index}": state[0] for index, state in enumerate(hidden[1:-1])}
    return tensors | {f"{name}.final": hidden[-1][0], f"{name}.dense": in_patch_order(model, seen[0], inputs)}


def make(_, data):
    tensors = {key: value for name in CASES for key, value in states(name, data).items()}
    save_file({name: value.clone().contiguous() for name, value in tensors.items()}, data / "hidden_states.safetensors")
