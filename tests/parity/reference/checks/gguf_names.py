"""What llama.cpp's converter would call the tensors of a checkpoint, by the name maps of the package gguf.

The package has the maps; what convert_hf_to_gguf.py does to names before it asks them (its folder conversion/ in November 2026) is
written here. InternVL is not among the families: the converter knows OpenGVLab's own layout of it, not transformers'.
"""

import re
from importlib.metadata import version

import gguf

TEXT_MODELS = {
    "idefics3": "LLAMA", "smolvlm": "LLAMA", "llava": "LLAMA", "qwen2_vl": "QWEN2VL", "qwen2_5_vl": "QWEN2VL", "qwen3_vl": "QWEN3VL",
    "qwen3_5": "QWEN35", "gemma3": "GEMMA3", "gemma4": "GEMMA4", "gemma4_unified": "GEMMA4",
}
SUFFIXES = (".weight", ".bias", ".input_min", ".input_max", ".output_min", ".output_max")
OF_VISION = re.compile(r"vision_tower\.|vision_model\.|visual\.|multi_modal_projector\.|embed_vision\.|model\.connector\.")
# The converter names these itself.
NAMED_BY_CODE = re.compile(r"visual\.(merger|deepstack_merger_list\.[0-9]+)\.(norm|linear_fc[12])\.(weight|bias)")
# Multi-token prediction becomes a block after the last (conversion/qwen.py). gguf 0.19.0 has the names of its other tensors in
# the map of this architecture only; llama.cpp's own copy of the package has them in QWEN35, too.
ARCHITECTURE_OF_MTP = "GLM4_MOE"
NAMES_OF_MTP = {"fc": "eh_proj", "pre_fc_norm_embedding": "enorm", "pre_fc_norm_hidden": "hnorm", "norm": "shared_head.norm"}
# gguf 0.19.0 has no names for the patches of gemma4_unified, and others than transformers' for audio; llama.cpp's converter renames both.
UNNAMED_OF_GEMMA4 = ("model.vision_embedder.", "model.audio_tower.", "model.embed_audio.")
VERSION = version("gguf")
BLOCKS = 128


def name_of_mtp(name):
    """Returns the name of a tensor mtp.… as one of the block."""
    module, _, rest = name.removeprefix("mtp.").partition(".")
    return f"model.layers.{BLOCKS - 1}." + (rest.partition(".")[2] if module == "layers" else f"{NAMES_OF_MTP[module]}.{rest}")


def names_for_the_map(kind, name):
    """Under which it is looked up; none where the converter names it itself."""
    if kind == "qwen3_5":
        name = name_of_mtp(name) if name.startswith("mtp.") else name.replace(".dt_bias", ".dt_proj.bias")
    if kind.startswith("gemma4") and name.startswith(UNNAMED_OF_GEMMA4):
        return []
    if not OF_VISION.search(name):
        return [name.replace("text_model.", "").replace("language_model.", "")]
    if kind in ("qwen3_vl", "qwen3_5"):
        name = name.removeprefix("model.")
        return [] if NAMED_BY_CODE.fullmatch(name) else [name]
    if kind == "gemma3":
        return [name.replace("_weight", ".weight")]
    if kind == "gemma4":
        return [name.replace("model.vision_tower.encoder.", "vision_model.model.").replace(".linear.weight", ".weight")]
    if kind in ("qwen2_vl", "qwen2_5_vl") and ".qkv." in name:
        return [name.replace("qkv", part) for part in "qkv"]
    return [name]


def knows(config):
    return config["model_type"] in TEXT_MODELS


def problems_of_checkpoint(config, names):
    kind = config["model_type"]
    text = gguf.get_tensor_name_map(gguf.MODEL_ARCH[TEXT_MODELS[kind]], BLOCKS)
    vision = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, BLOCKS)
    mtp = gguf.get_tensor_name_map(gguf.MODEL_ARCH[ARCHITECTURE_OF_MTP], BLOCKS)
    unnamed = []
    for name in sorted(names):
        names_of_part = vision if OF_VISION.search(name) else text
        if name.startswith("mtp.") and not name.startswith("mtp.layers."):
            names_of_part = mtp
        for renamed in names_for_the_map(kind, name):
            if names_of_part.get_name(renamed, try_suffixes=SUFFIXES) is None:
                unnamed.append(name)
    return [f"gguf has no name for {len(unnamed)} tensors, such as {unnamed[0]}"] if unnamed else []
