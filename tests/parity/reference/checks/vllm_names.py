"""Where vLLM's loader puts the tensors of a checkpoint and the modules of an adapter, for the architectures of vlmtrain's families.

Written from vLLM 0.33.0's sources (vllm/model_executor/models, vllm/lora/utils.py, vllm/lora/model_manager.py; gemma4_mm.py of commit
01bae219): the prefixes of each
class's hf_to_vllm_mapper, and the modules that the class builds. Names of Linears that vLLM holds packed (qkv_proj, gate_up_proj)
stand here as a checkpoint has them, since its loader takes those. `differences_from_source` compares with another version's files.
"""

import ast
import re
from dataclasses import dataclass
from pathlib import Path

VERSION = "0.33.0"
N = r"\d+"


def linear(*names):
    return [rf"{name}\.(weight|bias)" for name in names]


def norm(*names):
    return linear(*names)


def text_model(*more_norms, head_norms=False):
    block = norm("input_layernorm", "post_attention_layernorm", *more_norms)
    block += linear(r"self_attn\.[qkvo]_proj", r"mlp\.(gate|up|down)_proj")
    if head_norms:
        block += norm(r"self_attn\.[qk]_norm")
    return [r"embed_tokens\.weight", *norm("norm"), *[rf"layers\.{N}\.{name}" for name in block]]


def weights(*names):
    return [rf"{name}\.weight" for name in names]


def hybrid_text_model():
    """Layers with attention or a gated delta net, without biases: vLLM skips those of a checkpoint."""
    attention = weights(r"self_attn\.[qkvo]_proj", r"self_attn\.[qk]_norm")
    delta_net = weights("in_proj_(qkv|z|b|a)", "conv1d", "norm", "out_proj") + ["A_log", "dt_bias"]
    block = weights("input_layernorm", "post_attention_layernorm", r"mlp\.(gate|up|down)_proj")
    block += attention + [rf"linear_attn\.{name}" for name in delta_net]
    return [*weights("embed_tokens", "norm"), *[rf"layers\.{N}\.{name}" for name in block]]


def siglip(first_norm=()):
    """CLIP has a norm more, and a token of its own."""
    block = norm("layer_norm[12]") + linear(r"self_attn\.(q|k|v|out)_proj", r"mlp\.fc[12]")
    names = [*linear(r"embeddings\.patch_embedding"), r"embeddings\.position_embedding\.weight", r"embeddings\.class_embedding"]
    return names + norm("post_layernorm", *first_norm) + [rf"encoder\.layers\.{N}\.{name}" for name in block]


def qwen_tower(mlp, merger, more=()):
    block = norm("norm[12]") + linear(r"attn\.(qkv|proj)", rf"mlp\.({mlp})")
    return [*linear(r"patch_embed\.proj"), *merger, *more, *[rf"blocks\.{N}\.{name}" for name in block]]


def under(prefix, names):
    return [re.escape(prefix) + name for name in names]


@dataclass
class Architecture:
    """prefixes: of checkpoints, in the mapper's order. modules: of the parameters, as vLLM has them. language: where its text model is.

    source: the file with the mapper. skipped: the prefix of tensors that the loader skips.
    """

    source: str
    prefixes: dict[str, str]
    modules: list[str]
    language: str = "language_model"
    skipped: str | None = None

    def find_position(self, name):
        """Returns vLLM's name of the tensor, or None without a match. Prefixes apply one after another."""
        for prefix, new in self.prefixes.items():
            if name.startswith(prefix):
                name = new + name[len(prefix):]
        return name if any(re.fullmatch(pattern, name) for pattern in self.modules) else None


NEW_NAMES = {
    "model.language_model.": "language_model.model.", "model.vision_tower.": "vision_tower.",
    "model.multi_modal_projector.": "multi_modal_projector.", "lm_head.": "language_model.lm_head.",
}
GEMMA4_NAMES = {
    "model.vision_tower": "vision_tower", "model.embed_vision": "embed_vision", "model.audio_tower.": "audio_tower.",
    "model.embed_audio.": "embed_audio.", "model.language_model.": "language_model.model.", "lm_head.": "language_model.lm_head.",
    "model": "language_model.model",
}
GEMMA4_UNIFIED_NAMES = {"model.vision_embedder.": "vision_embedder."} | GEMMA4_NAMES
QWEN2_NAMES = {
    "model.language_model.": "language_model.model.", "model.visual.": "visual.", "lm_head.": "language_model.lm_head.",
    "model.": "language_model.model.",
}
QWEN3_NAMES = {"model.visual.": "visual.", "lm_head.": "language_model.lm_head.", "model.language_model.": "language_model.model."}
HEAD = [r"language_model\.lm_head\.weight"]
TEXT = under("language_model.model.", text_model())
QWEN3_TEXT = under("language_model.model.", text_model(head_norms=True))
GEMMA3_TEXT = under("language_model.model.", text_model("pre_feedforward_layernorm", "post_feedforward_layernorm", head_norms=True))
# vLLM 0.33.0 builds keys and values in all blocks and does not load them in those that read another block's.
GEMMA4_TEXT = [*GEMMA3_TEXT, rf"language_model\.model\.layers\.{N}\.layer_scalar"]
GEMMA4_TEXT += under("language_model.model.", weights(
    "embed_tokens_per_layer", "per_layer_model_projection", "per_layer_projection_norm",
    rf"layers\.{N}\.(per_layer_input_gate|per_layer_projection|post_per_layer_input_norm)",
))
QWEN3_MERGER = norm(r"merger\.norm", rf"deepstack_merger_list\.{N}\.norm")
QWEN3_MERGER += linear(r"merger\.linear_fc[12]", rf"deepstack_merger_list\.{N}\.linear_fc[12]")
# vLLM runs transformers' tower.
GEMMA4_BLOCK = weights(
    "(input|post_attention|pre_feedforward|post_feedforward)_layernorm", r"self_attn\.[qk]_norm",
    r"self_attn\.[qkvo]_proj\.linear", r"mlp\.(gate|up|down)_proj\.linear",
) + [r"(self_attn|mlp)\.[a-z]+_proj\.(input|output)_(min|max)"]
GEMMA4_TOWER = [*weights(r"patch_embedder\.input_proj"), r"patch_embedder\.position_embedding_table", "std_(bias|scale)"]
GEMMA4_TOWER += [rf"encoder\.layers\.{N}\.{name}" for name in GEMMA4_BLOCK]
INTERN_BLOCK = norm("layernorm_(before|after)") + linear(r"attention\.(q_proj|k_proj|v_proj|projection_layer)", r"mlp\.fc[12]")
INTERN_BLOCK += norm(r"attention\.[qk]_norm") + [r"lambda_[12]"]
INTERN_TOWER = [r"embeddings\.(cls_token|position_embeddings|mask_token)", *linear(r"embeddings\.patch_embeddings\.projection"), *norm("layernorm")]
INTERN_TOWER += [rf"encoder\.layer\.{N}\.{name}" for name in INTERN_BLOCK]

IDEFICS3 = Architecture(
    "idefics3.py", {},
    [r"lm_head\.weight", *under("model.text_model.", text_model()), *under("model.vision_model.", siglip()),
     *linear(r"model\.connector\.modality_projection\.proj")],
    language="model.text_model",
)
ARCHITECTURES = {
    "Idefics3ForConditionalGeneration": IDEFICS3,
    "SmolVLMForConditionalGeneration": IDEFICS3,
    "LlavaForConditionalGeneration": Architecture(
        "llava.py", NEW_NAMES,
        [*HEAD, *TEXT, *under("vision_tower.vision_model.", siglip(["pre_layrnorm"])), *linear(r"multi_modal_projector\.linear_[12]")],
    ),
    "Qwen2VLForConditionalGeneration": Architecture(
        "qwen2_vl.py", QWEN2_NAMES,
        [*HEAD, *TEXT, *under("visual.", qwen_tower("fc[12]", norm(r"merger\.ln_q") + linear(r"merger\.mlp\.[02]")))],
    ),
    "Qwen2_5_VLForConditionalGeneration": Architecture(
        "qwen2_5_vl.py", QWEN2_NAMES,
        [*HEAD, *TEXT, *under("visual.", qwen_tower("gate_proj|up_proj|down_proj", norm(r"merger\.ln_q") + linear(r"merger\.mlp\.[02]")))],
    ),
    "Qwen3VLForConditionalGeneration": Architecture(
        "qwen3_vl.py", QWEN3_NAMES,
        [*HEAD, *QWEN3_TEXT, *under("visual.", qwen_tower("linear_fc[12]", QWEN3_MERGER, [r"pos_embed\.weight"]))],
    ),
    "Qwen3_5ForConditionalGeneration": Architecture(
        "qwen3_vl.py", QWEN3_NAMES,
        [*HEAD, *under("language_model.model.", hybrid_text_model()),
         *under("visual.", qwen_tower("linear_fc[12]", QWEN3_MERGER, [r"pos_embed\.weight"]))],
        skipped="mtp.",
    ),
    "Gemma3ForConditionalGeneration": Architecture(
        "gemma3_mm.py", NEW_NAMES,
        [*HEAD, *GEMMA3_TEXT, *under("vision_tower.vision_model.", siglip()),
         *under("multi_modal_projector.", [r"mm_input_projection_weight", r"mm_soft_emb_norm\.weight"])],
    ),
    "Gemma4ForConditionalGeneration": Architecture(
        "gemma4_mm.py", GEMMA4_NAMES,
        [*HEAD, *GEMMA4_TEXT, *under("vision_tower.", GEMMA4_TOWER), *weights(r"embed_(vision|audio)\.embedding_projection"),
         r"audio_tower\..+"],  # vLLM runs transformers' tower
    ),
    "Gemma4UnifiedForConditionalGeneration": Architecture(
        "gemma4_unified.py", GEMMA4_UNIFIED_NAMES,
        [*HEAD, *GEMMA4_TEXT, *weights(r"embed_vision\.embedding_projection"),
         *under("vision_embedder.", norm("patch_ln[12]", "pos_norm") + linear("patch_dense") + ["pos_embedding"])],
    ),
    "InternVLForConditionalGeneration": Architecture(
        "interns1.py", NEW_NAMES,
        [*HEAD, *QWEN3_TEXT, *under("vision_tower.", INTERN_TOWER),
         *under("multi_modal_projector.", norm("layer_norm") + linear("linear_[12]"))],
    ),
}


def problems_of_checkpoint(config, names):
    architecture = ARCHITECTURES[config["architectures"][0]]
    loaded = [name for name in names if not (architecture.skipped and name.startswith(architecture.skipped))]
    lost = sorted(name for name in loaded if architecture.find_position(name) is None)
    return [f"vLLM has no place for {len(lost)} tensors, such as {lost[0]}"] if lost else []


def modules_of_adapter(names):
    return {name.removeprefix("base_model.model.").split(".lora_")[0] for name in names}


def use_of_adapter(config, names):
    """How many of an adapter's modules vLLM applies: always; with --enable-tower-connector-lora too; never, as it finds no module of
    the name and says nothing of it."""
    architecture = ARCHITECTURES[config["architectures"][0]]
    always, with_option, never = 0, 0, 0
    for module in modules_of_adapter(names):
        place = architecture.find_position(module + ".weight")
        if place is None:
            never += 1
        elif place.startswith((architecture.language + ".", "lm_head.")):
            always += 1
        else:
            with_option += 1
    return always, with_option, never


def problems_of_adapter(config, adapter_config, names):
    """Returns the tensors that vLLM rejects, and those that it would omit from the language model."""
    architecture = ARCHITECTURES[config["architectures"][0]]
    problems = []
    for name in sorted(names):
        if not re.fullmatch(r"base_model\.model\..+\.lora_[AB]\.weight", name):
            problems.append(f"vLLM reads no tensor {name} of an adapter")
    for module in sorted(modules_of_adapter(names)):
        if re.search(r"(language|text)_model\.", module) and architecture.find_position(module + ".weight") is None:
            problems.append(f"vLLM has no module for {module}")
    for key in ("use_dora", "lora_bias", "modules_to_save"):
        if adapter_config.get(key):
            problems.append(f"vLLM supports no adapter with {key}; merge it")
    return problems


def differences_from_source(folder):
    """Where the prefixes above are not those of hf_to_vllm_mapper in a version's vllm/model_executor/models."""
    problems = []
    for name, architecture in ARCHITECTURES.items():
        text = (Path(folder) / architecture.source).read_text()
        prefixes = {}
        for outer in ast.parse(text).body:
            if not isinstance(outer, ast.ClassDef) or not outer.name.endswith("ForConditionalGeneration"):
                continue
            for call in (node.value for node in outer.body if isinstance(node, ast.Assign) and node.targets[0].id == "hf_to_vllm_mapper"):
                for keyword in call.keywords:
                    if keyword.arg == "orig_to_new_prefix":
                        prefixes = ast.literal_eval(keyword.value)
        if prefixes != architecture.prefixes:
            problems.append(f"{architecture.source}: {name} maps {prefixes}")
    return problems
