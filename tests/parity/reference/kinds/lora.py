"""A folder in lora/ for each of CASES: an adapter of a case of families/, and what peft makes of it.

adapter/ as peft saves it, with random values, case.json (what the case is, and how far float32 is from float64) and
expected.safetensors (what peft computes in float32 on the CPU, from that adapter):

    sample.I.logits, loss, step_losses, step_grad_norms   as in cases.py
    gradient.NAME     of that loss before clipping, NAME as in adapter_model.safetensors; absent where peft has none
    parameter.NAME    after the steps; absent where there is no gradient
    merged.NAME       the base's weights with the adapter folded in, NAME as in the checkpoint; of three modules only
"""

from dataclasses import dataclass, field

import peft
import torch
import transformers

import families
from library import deviations, thin, training
from library.cases import read_json, write_json

RANK = 4
ALPHA = 8
MERGED_MODULES = 3


@dataclass
class LoraCase:
    """base: the case whose checkpoint and samples are used. options: of peft.LoraConfig."""

    name: str
    about: str
    base: str
    target_modules: str | list[str]
    options: dict = field(default_factory=dict)


CASES = [
    LoraCase("all_linear", "every Linear but the output projection", "mixed_batch", "all-linear"),
    LoraCase(
        "rank_stabilised_names", "a list of names, which both towers have", "smolvlm_type_sharded",
        ["q_proj", "self_attn.v_proj", "down_proj", "proj"], {"use_rslora": True},
    ),
    LoraCase(
        "text_tower", "a regular expression for the language model", "full_heads_untied_tiles",
        r".*text_model.*\.(q_proj|v_proj|up_proj)",
    ),
    LoraCase(
        "vision_tower", "a regular expression for one block of the vision tower", "grouped_tied_one_image",
        r"model\.vision_model\.encoder\.layers\.1\.(mlp\.fc\d|self_attn\.out_proj)",
    ),
    LoraCase("text_only", "no image: the vision tower's adapters get no gradient", "text_only", "all-linear"),
    LoraCase("dora", "weight-decomposed, every Linear, with and without bias", "mixed_batch", "all-linear", {"use_dora": True}),
    LoraCase(
        "dora_rank_stabilised", "weight-decomposed and rank-stabilised, some names", "full_heads_untied_tiles",
        ["k_proj", "o_proj", "fc1", "gate_proj"], {"use_dora": True, "use_rslora": True},
    ),
    LoraCase("llava_all_linear", "LLaVA; peft adapts the tower's last block too, which never runs", "llava_clip_mistral", "all-linear"),
    LoraCase(
        "llava_modules_to_save", "LLaVA with the hub's weight names; projector, embeddings and output trained whole", "llava_clip_llama",
        ["q_proj", "v_proj"], {"modules_to_save": ["multi_modal_projector", "embed_tokens", "lm_head"]},
    ),
    LoraCase("qwen_all_linear", "Qwen2.5-VL with images and a video; query, key and value of its tower are one Linear", "qwen2_5_vl_mixed", "all-linear"),
    LoraCase("qwen3_all_linear", "Qwen3-VL with images and a video: DeepStack's mergers too", "qwen3_vl_mixed", "all-linear"),
    LoraCase("qwen3_5_deltas", "three Linears of Qwen3.5's gated delta nets", "qwen3_5_video",
             r".*\.in_proj_(qkv|a|b)"),
    LoraCase("gemma4_all_linear", "Gemma 4: clamped Linears of the tower, keys that are also values", "gemma4_tower", "all-linear"),
    LoraCase("gemma4_per_layer_linears", "Gemma 4 as E2B: gates and projections of per-layer inputs, and queries", "gemma4_per_layer",
             r".*language_model.*\.(per_layer_(input_gate|projection|model_projection)|q_proj)"),
]
NAMES = [case.name for case in CASES]


def adapted(model, case):
    """Returns the model with the case's adapter, which has random values."""
    config = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=case.target_modules, **case.options)
    model = peft.get_peft_model(model, config)
    randomise(model, seed=len(case.name))
    return model.eval()


def randomise(model, seed):
    """An adapter that has been trained: B is not zero, and DoRA's lengths are not the base's."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:
                continue
            noise = torch.randn(parameter.shape, generator=generator)
            if "modules_to_save" in name:
                parameter.add_(0.05 * noise)
            elif "magnitude" in name:
                parameter.mul_(1 + 0.1 * noise)
            else:
                parameter.copy_(0.3 * noise / parameter.shape[1] ** 0.5)


def saved_name(name):
    """As in adapter_model.safetensors."""
    name = name.replace(".modules_to_save.default.", ".")
    return name.replace(".lora_magnitude_vector.default.weight", ".lora_magnitude_vector").replace(".default.", ".")


def merged_weights(model):
    names = sorted(n.removeprefix("base_model.model.") for n, m in model.named_modules() if hasattr(m, "lora_A"))
    weights = model.merge_and_unload().state_dict()
    merged_names = names[:: max(1, len(names) // MERGED_MODULES)][:MERGED_MODULES]
    return {f"merged.{name}.weight": weights[f"{name}.weight"].clone() for name in merged_names}


def save_adapter(model, case, folder):
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    config = read_json(folder / "adapter_config.json")
    config["base_model_name_or_path"] = f"tests/parity/data/{case.base}/checkpoint"
    if isinstance(config["target_modules"], list):
        config["target_modules"].sort()
    write_json(folder / "adapter_config.json", config)


def versions():
    return {"peft": peft.__version__, "transformers": transformers.__version__, "torch": torch.__version__}


def make(name, data):
    case = next(case for case in CASES if case.name == name)
    folder = thin.empty_folder(data / "lora" / name)
    base = families.find(case.base, data)
    with base.patched():
        samples = base.open().encode_all()
        model = adapted(base.load(), case)
        save_adapter(model, case, folder / "adapter")
        single = training.run(model, samples, saved_name)
        double = training.run(training.in_float64(adapted(base.load(), case)), samples, saved_name)
        merged = merged_weights(adapted(base.load(), case))
    thin.save(single.tensors() | merged, folder / "expected.safetensors")
    deviation = deviations.compare(single, double)
    write_json(folder / "case.json", {
        "name": case.name,
        "about": case.about,
        "base": case.base,
        **versions(),
        "rank": RANK,
        "alpha": ALPHA,
        "use_rslora": case.options.get("use_rslora", False),
        "use_dora": case.options.get("use_dora", False),
        "modules_to_save": case.options.get("modules_to_save", []),
        "target_modules": [case.target_modules] if isinstance(case.target_modules, str) else case.target_modules,
        **training.SETTINGS,
        "parameters_without_gradient": single.without_gradient,
        "float32_from_float64": {
            key: deviation[key] for key in ("loss", "logits", "largest_logit", "step_losses", "step_grad_norms")
        } | {
            "gradient": max(map(deviations.relative, deviation["gradients"].values())),
            "parameter_largest": max(value["largest"] for value in deviation["parameters"].values()),
            "parameter_mean": max(value["mean"] for value in deviation["parameters"].values()),
        },
    })
