"""Makes the data that LoRA's parity tests hold vlmtrain against: python make_lora_reference.py [--out ../data/lora].

Each case is an adapter of one of make_reference.py's checkpoints and becomes a folder: adapter/ as peft saves it, with random
values, case.json (what the case is) and expected.safetensors (what peft computes in float32 on the CPU, from that adapter):

    sample.I.logits   float32 [label tokens, vocabulary], at the positions before the labels
    loss              float32 [], as in make_reference.py
    gradient.NAME     of that loss before clipping, NAME as in adapter_model.safetensors; absent where peft has none
    step_losses, step_grad_norms   float32 [5], of AdamW steps on this batch; norms before clipping
    parameter.NAME    after these steps; absent where there is no gradient
    merged.NAME       the base's weights with the adapter folded in, NAME as in the checkpoint; of three modules only

case.json holds the differences between float32 and float64 as well.
"""

import argparse
import json
import shutil
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import peft
import torch
import transformers
from transformers import AutoProcessor

from library import deviations
from library import llava
from library import llava_checkpoints
from library import llava_format
import make_llava_reference
import make_qwen_reference
from library import qwen_checkpoints
from library import qwen_format
from library import thin
from library import training
from library.cases import CASES

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


LORA_CASES = [
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
    LoraCase("qwen_all_linear", "Qwen2.5-VL with pictures and a video; query, key and value of its tower are one Linear", "qwen2_5_vl_mixed", "all-linear"),
    LoraCase("qwen3_all_linear", "Qwen3-VL with pictures and a video: DeepStack's mergers too", "qwen3_vl_mixed", "all-linear"),
]


def adapted(checkpoint, case, dtype):
    config = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=case.target_modules, **case.options)
    model = peft.get_peft_model(training.load(checkpoint, torch.float32), config)
    randomise(model, seed=len(case.name))
    return (model if dtype == torch.float32 else training.in_float64(model)).eval()


def randomise(model, seed):
    """An adapter that has been trained: B is not zero, and DoRA's lengths are not the base's."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in trained(model):
            noise = torch.randn(parameter.shape, generator=generator)
            if "modules_to_save" in name:
                parameter.add_(0.05 * noise)
            elif "magnitude" in name:
                parameter.mul_(1 + 0.1 * noise)
            else:
                parameter.copy_(0.3 * noise / parameter.shape[1] ** 0.5)


def trained(model):
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]


def saved_name(name):
    """As in adapter_model.safetensors."""
    name = name.replace(".modules_to_save.default.", ".")
    return name.replace(".lora_magnitude_vector.default.weight", ".lora_magnitude_vector").replace(".default.", ".")


def run(checkpoint, case, samples, dtype):
    model = adapted(checkpoint, case, dtype)
    adamw = training.optimizer(model)
    losses, norms = [], []
    for step in range(training.STEPS):
        loss, logits = training.batch_loss(model, samples)
        adamw.zero_grad()
        loss.backward()
        if step == 0:
            first_logits = [value.detach() for value in logits]
            gradients = {saved_name(n): p.grad.clone() for n, p in trained(model) if p.grad is not None}
            without = [saved_name(n) for n, p in trained(model) if p.grad is None]
        losses.append(loss.detach())
        norms.append(torch.nn.utils.clip_grad_norm_([p for _, p in trained(model)], training.MAX_GRAD_NORM))
        adamw.step()
    return training.Result(
        loss=losses[0],
        sample_logits=first_logits,
        gradients=gradients,
        without_gradient=without,
        step_losses=torch.stack(losses),
        step_grad_norms=torch.stack(norms),
        parameters={saved_name(n): p.detach() for n, p in trained(model)},
    )


def merged_weights(checkpoint, case):
    model = adapted(checkpoint, case, torch.float32)
    names = sorted(n.removeprefix("base_model.model.") for n, m in model.named_modules() if hasattr(m, "lora_A"))
    weights = model.merge_and_unload().state_dict()
    merged_names = names[:: max(1, len(names) // MERGED_MODULES)][:MERGED_MODULES]
    return {f"merged.{name}.weight": weights[f"{name}.weight"].clone() for name in merged_names}


def save_adapter(checkpoint, case, folder):
    adapted(checkpoint, case, torch.float32).save_pretrained(folder)
    (folder / "README.md").unlink()
    config = json.loads((folder / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = f"tests/parity/data/{case.base}/checkpoint"
    if isinstance(config["target_modules"], list):
        config["target_modules"].sort()
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")


def summary(deviation):
    """Returns the largest deviations of deviations.compare()."""
    return {key: deviation[key] for key in ("loss", "logits", "largest_logit", "step_losses", "step_grad_norms")} | {
        "gradient": max(map(deviations.relative, deviation["gradients"].values())),
        "parameter_largest": max(value["largest"] for value in deviation["parameters"].values()),
        "parameter_mean": max(value["mean"] for value in deviation["parameters"].values()),
    }


QWEN_SHAPES = {case.name: case.shape for case in make_qwen_reference.CASES}


def lay_out(base):
    """The layout of videos that the base's case has, while its samples are made and computed."""
    return qwen_format.video_layout(QWEN_SHAPES[base].video_layout) if base in QWEN_SHAPES else nullcontext()


def qwen_samples(shape, records, folder):
    model = training.load(folder / "checkpoint", torch.float32)
    processor = qwen_checkpoints.make_processor(shape, folder / "checkpoint")
    return [
        qwen_format.encode(processor, model, record, folder / "images", shape.vision, layout=shape.video_layout) for record in records
    ]


def make_samples(base, folder):
    records = json.loads((folder / "conversations.json").read_text())
    if base in QWEN_SHAPES:
        return qwen_samples(QWEN_SHAPES[base], records, folder)
    shapes = {other.name: other.shape for other in make_llava_reference.CASES}
    if base not in shapes:
        processor = AutoProcessor.from_pretrained(folder / "checkpoint")
        return [llava.encode(processor, record, folder / "images") for record in records]
    config = json.loads((folder / "checkpoint" / "config.json").read_text())
    processor = llava_checkpoints.make_processor(shapes[base], folder / "checkpoint")
    image_id = config.get("image_token_index", config.get("image_token_id"))
    return [llava_format.encode(processor, shapes[base], image_id, record, folder / "images") for record in records]


def make(case, out):
    base = out.parent / case.base
    folder = out / case.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    samples = make_samples(case.base, base)
    save_adapter(base / "checkpoint", case, folder / "adapter")
    single = run(base / "checkpoint", case, samples, torch.float32)
    double = run(base / "checkpoint", case, samples, torch.float64)

    tensors = {f"sample.{index}.logits": logits for index, logits in enumerate(single.sample_logits)}
    tensors |= {"loss": single.loss, "step_losses": single.step_losses, "step_grad_norms": single.step_grad_norms}
    tensors |= {f"gradient.{name}": value for name, value in single.gradients.items()}
    tensors |= {f"parameter.{name}": value for name, value in single.parameters.items() if name in single.gradients}
    tensors |= merged_weights(base / "checkpoint", case)
    thin.save(tensors, folder / "expected.safetensors")
    description = {
        "name": case.name,
        "about": case.about,
        "base": case.base,
        "peft": peft.__version__,
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "rank": RANK,
        "alpha": ALPHA,
        "use_rslora": case.options.get("use_rslora", False),
        "use_dora": case.options.get("use_dora", False),
        "modules_to_save": case.options.get("modules_to_save", []),
        "target_modules": [case.target_modules] if isinstance(case.target_modules, str) else case.target_modules,
        "learning_rate": training.LEARNING_RATE,
        "adam_betas": [0.9, 0.999],
        "adam_epsilon": 1e-8,
        "weight_decay": training.WEIGHT_DECAY,
        "max_grad_norm": training.MAX_GRAD_NORM,
        "steps": training.STEPS,
        "parameters_without_gradient": single.without_gradient,
        "float32_from_float64": summary(deviations.compare(single, double)),
    }
    (folder / "case.json").write_text(json.dumps(description, indent=2) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent.parent / "data" / "lora")
    parser.add_argument("--only", help="make only this case")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    make_qwen_reference.keep_float64()
    for case in LORA_CASES:
        if arguments.only in (None, case.name):
            with lay_out(case.base):
                make(case, arguments.out)


if __name__ == "__main__":
    main()
