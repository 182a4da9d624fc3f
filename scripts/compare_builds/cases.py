"""The compared cases: training, evaluation and generation on the CPU, plans, training on virtual GPUs."""

import json
from dataclasses import dataclass
from typing import Callable

from material import PRESETS, SEED, inputs
from runs import INPUTS, MEASURED, MEASURED_IN_RUNS, checkpoint, json_lines, page_data, run_files, trace, without

# Four steps of four samples in two micro-batches; everything that depends on time or on the machine's memory is fixed.
TRAINING = {
    "data.train": f"{INPUTS}/data/mixed.json", "data.image_root": f"{INPUTS}/data", "data.chat_template_date": "2026-01-01",
    "training.global_batch_size": 4, "training.micro_batch_size": 2, "training.max_steps": 4, "training.learning_rate": 1e-3,
    "training.warmup_ratio": 0.25, "training.weight_decay": 0.1, "training.precision": "fp32", "training.seed": SEED,
    "memory.recompute": "none", "output.dir": "run", "output.save_steps": 0, "output.log_samples": "true",
    "output.sample_predictions": 1, "output.sample_predictions_share": 1, "output.report": "false", "output.tensorboard": "false",
}
SINGLE = {"data.train": f"{INPUTS}/data/single.json"}
VIDEOS = {"data.train": f"{INPUTS}/data/videos.json"}
LORA = {"lora.rank": 4, "lora.alpha": 8, "lora.dropout": 0.1}
NF4 = {**LORA, "model.quantization": "nf4", "training.precision": "bf16"}
EVALUATION = {"data.eval": f"{INPUTS}/data/held_out.json", "training.eval_steps": 2, "training.eval_max_new_tokens": 6}
MANY = {"training.global_batch_size": 8}
# 24 samples at once need 0.65 GB of GPU memory, context included; one at a time 0.59 GB.
TOO_LARGE = {"training.precision": "bf16", "training.global_batch_size": 24, "training.micro_batch_size": 24, "memory.allow_splits": "true",
             "memory.limit_gb": 0.64, "memory.mode": "aggressive"}


def precision(word):
    return {"training.precision": word}


def states(word):
    return {"training.optimizer_states": word}


def cut(words):
    return {"memory.recompute": words.get("recompute", "none"), "memory.vision_tiles_per_pass": words.get("tiles", 0),
            "memory.loss_chunk_rows": words.get("rows", 1024)}


# name → preset, settings
TRAININGS = {
    # scripts/quickstart.sh, shortened, with other data, because the quickstart's need Pillow.
    "quickstart": ("smolvlm-tiny", {"training.global_batch_size": 8, "training.micro_batch_size": 8, "training.max_steps": 12,
                                    "training.adam_beta2": 0.99, "training.weight_decay": 0.05, "output.save_steps": 4, "output.keep": 1,
                                    "data.max_length": 1024, "data.eval": f"{INPUTS}/data/held_out.json", "memory.recompute": "auto"}),
    "smolvlm-bf16": ("smolvlm-tiny", precision("bf16")),
    "smolvlm-fp16": ("smolvlm-tiny", precision("fp16")),
    "smolvlm-fp16-overflow": ("smolvlm-tiny", {**precision("fp16"), "training.loss_scale_growth_steps": 1, "training.max_steps": 16,
                                               "training.global_batch_size": 2, "training.micro_batch_size": 1}),
    "smolvlm-8bit": ("smolvlm-tiny", {**precision("bf16"), **states("8bit")}),
    "smolvlm-bf16-states": ("smolvlm-tiny", {**precision("bf16"), **states("bf16")}),
    "smolvlm-recompute": ("smolvlm-tiny", cut({"recompute": "all", "tiles": 3, "rows": 16})),
    "smolvlm-frozen": ("smolvlm-tiny", {"model.freeze_vision_tower": "true", "training.projector_learning_rate": 2e-3}),
    "smolvlm-dora": ("smolvlm-tiny", {**LORA, "lora.use_dora": "true", "lora.modules_to_save": "[embed_tokens]"}),
    "smolvlm-gradnorm": ("smolvlm-tiny", {**MANY, "training.task_weighting": "gradnorm"}),
    "smolvlm-pcgrad": ("smolvlm-tiny", {**MANY, "training.gradient_conflicts": "pcgrad"}),
    "smolvlm-pcgrad-bf16": ("smolvlm-tiny", {**MANY, **precision("bf16"), "training.gradient_conflicts": "pcgrad"}),
    "smolvlm-task-weights": ("smolvlm-tiny", {**MANY, "training.task_weighting": "inverse_size"}),
    "smolvlm-tokens": ("smolvlm-tiny", {**MANY, "training.micro_batch_size": 4, "training.global_batch_tokens": 400,
                                        "training.batch_scaling": "sqrt"}),
    "smolvlm-evaluation": ("smolvlm-tiny", {**EVALUATION, "training.best_metric": "exact_match"}),
    "llava": ("llava-tiny", SINGLE),
    "llava-fp16": ("llava-tiny", {**SINGLE, **precision("fp16")}),
    "llava-lora": ("llava-tiny", {**LORA, **cut({"recompute": "all"})}),
    "llava-nf4": ("llava-tiny", {**SINGLE, **NF4}),
    "qwen2.5-vl": ("qwen2.5-vl-tiny", {}),
    "qwen2.5-vl-videos": ("qwen2.5-vl-tiny", {**VIDEOS, **precision("bf16"), **cut({"tiles": 64})}),
    "qwen2.5-vl-lora": ("qwen2.5-vl-tiny", {**LORA, **precision("bf16"), **EVALUATION}),
    "qwen2.5-vl-nf4": ("qwen2.5-vl-tiny", {**NF4, **cut({"recompute": "1+1"})}),
    "internvl3": ("internvl3-tiny", cut({"recompute": "1+1"})),
    "internvl3.5-videos": ("internvl3.5-tiny", {**VIDEOS, **precision("bf16"), **cut({"tiles": 3})}),
    "internvl3.5-nf4": ("internvl3.5-tiny", NF4),
    "qwen3-vl-videos": ("qwen3-vl-tiny", {**VIDEOS, **precision("bf16"), **cut({"recompute": "1+1"})}),
    "qwen3.5": ("qwen3.5-tiny", {}),
    "qwen3.5-nf4": ("qwen3.5-tiny", {**NF4, **precision("bf16"), **cut({"recompute": "1+1"})}),
    "gemma-3": ("gemma-3-tiny", {}),
    "gemma-4": ("gemma-4-tiny", {}),
    "gemma-3-nf4": ("gemma-3-tiny", {**NF4, **precision("bf16"), **cut({"recompute": "1+1"})}),
    "qwen3-vl-lora": ("qwen3-vl-tiny", {**LORA, **precision("bf16"), **EVALUATION}),
    "nanovlm": ("nanovlm-tiny", SINGLE),
    "nanovlm-bf16-pcgrad": ("nanovlm-tiny", {**MANY, **precision("bf16"), "training.gradient_conflicts": "pcgrad"}),
    "nanovlm-lora-8bit": ("nanovlm-tiny", {**SINGLE, **LORA, **states("8bit")}),
}

# sharding, data type of the moments
SHARDED_RUNS = [(sharding, dtype) for sharding in ("none", "optimizer", "full") for dtype in ("fp32", "bf16", "8bit")]

# name → GPU, preset, settings, environment
VIRTUAL_GPU_RUNS = {
    "h100-smolvlm-bf16": ("h100", "smolvlm-tiny", precision("bf16"), {}),
    "a100-40-qwen2.5-vl-lora": ("a100-40", "qwen2.5-vl-tiny", {**precision("bf16"), **LORA, **EVALUATION}, {}),
    "rtx4090-llava-8bit": ("rtx4090", "llava-tiny", {**SINGLE, **precision("bf16"), **states("8bit"), "memory.recompute": "auto"}, {}),
    "t4-nanovlm-fp16": ("t4", "nanovlm-tiny", {**SINGLE, **precision("fp16")}, {}),
    "l4-smolvlm-pcgrad": ("l4", "smolvlm-tiny", {**MANY, **precision("bf16"), "training.gradient_conflicts": "pcgrad"}, {}),
    "h100-smolvlm-fp32-gradnorm": ("h100", "smolvlm-tiny", {**MANY, "training.task_weighting": "gradnorm", "memory.recompute": "all"}, {}),
    "rtx4090-smolvlm-nf4": ("rtx4090", "smolvlm-tiny", {**NF4, "training.micro_batch_size": "auto"}, {}),
    "a100-40-qwen2.5-vl-videos": ("a100-40", "qwen2.5-vl-tiny", {**VIDEOS, **precision("bf16"), **states("bf16"), **cut({"tiles": 64})}, {}),
    "rtx4090-smolvlm-cut-by-the-twin": ("rtx4090", "smolvlm-tiny", TOO_LARGE, {}),
    "rtx4090-smolvlm-cut-by-the-guard": ("rtx4090", "smolvlm-tiny", {**TOO_LARGE, "memory.twin": "false"}, {}),
    "h100-smolvlm-driver-without-memory": ("h100", "smolvlm-tiny", {**precision("bf16"), "training.max_steps": 8},
                                           {"VLMTRAIN_VGPU_FAIL": "launch@gather_kernel:40"}),
    "t4-smolvlm-saves": ("t4", "smolvlm-tiny", {"training.max_steps": 9, "output.save_steps": 3}, {}),
}
MODEL_PLANS = {
    "smolvlm-256m": ["--model", "smolvlm-256m", "--images", "2"],
    "smolvlm-2.2b-full-8bit": ["--model", "smolvlm-2.2b", "--finetune", "full", "--optimizer-states", "8bit", "--image-size", "1600x1200"],
    "llava-1.5-7b-lora": ["--images", "3"],
    "qwen2.5-vl-3b-nf4": ["--model", "qwen2.5-vl-3b", "--finetune", "lora", "--quantization", "nf4", "--mode", "aggressive"],
    "qwen3-vl-8b-lora": ["--model", "qwen3-vl-8b", "--finetune", "lora", "--video-frames", "32", "--video-size", "640x360"],
    "qwen3.5-4b-lora": ["--model", "qwen3.5-4b", "--finetune", "lora", "--images", "2"],
    "nanovlm-460m-fp16": ["--model", "nanovlm-460m", "--finetune", "full", "--precision", "fp16", "--global-batch", "32"],
}
GPUS = {"h100": ["--gpu", "h100"], "a100-40": ["--gpu", "a100-40"], "rtx4090": ["--gpu", "rtx4090"], "t4": ["--gpu", "t4"],
         "12gb": ["--gpu-gb", "12"]}
WITHOUT_BF16 = {"t4"}


@dataclass(frozen=True)
class Case:
    name: str
    outcome: Callable  # runs.Program → JSON-like outcome


def summary(out, measured=MEASURED):
    """Returns the JSON of `--json` without measured values; None if the program printed nothing."""
    return without(json.loads(out), measured) if out.strip() else None


def train(program, folder, preset, settings, device="cpu", flags=(), **how):
    inputs.write_config(folder / "train.yaml", {"model.path": f"{INPUTS}/{preset}", **TRAINING, **settings})
    code, _ = program.run(folder, ["--config", "train.yaml", "--device", device, "--quiet", *flags], **how)
    return code


def training(name, preset, settings):
    def outcome(program):
        folder = program.fresh_folder(name)
        # The memory limit determines the automatic micro-batch size on the CPU.
        return {"exit code": train(program, folder, preset, {"memory.limit_gb": 4, **settings}), **run_files(folder / "run")}
    return Case(name, outcome)


def on_two_ranks(sharding, dtype):
    """Returns a case that trains on two ranks of the CPU, by Gloo."""
    name = f"ranks/{sharding}-{dtype}-states"

    def outcome(program):
        folder = program.fresh_folder(name)
        settings = {"memory.limit_gb": 4, **precision("bf16"), **states(dtype), "distributed.sharding": sharding}
        code = train(program, folder, "smolvlm-tiny", settings, flags=["--nproc-per-node", "2"])
        return {"exit code": code, **run_files(folder / "run")}
    return Case(name, outcome)


def extended(program):
    """Runs three steps, then three more; the second start changes the configuration."""
    folder = program.fresh_folder("train/resume-extended")
    settings = {"memory.limit_gb": 4, **precision("bf16")}
    codes = [train(program, folder, "smolvlm-tiny", {**settings, "training.max_steps": 3}),
             train(program, folder, "smolvlm-tiny", {**settings, "training.max_steps": 6, "training.resume": "changed"})]
    return {"exit codes": codes, **run_files(folder / "run")}


def stopped(program):
    """Stops a run by a signal at a step that depends on timing, and resumes it. Returns the whole run's outcome without that step."""
    folder = program.fresh_folder("train/resume-stopped")
    settings = {"memory.limit_gb": 4, "training.max_steps": 60, "training.task_weighting": "gradnorm", "output.keep": 1}
    codes = [train(program, folder, "smolvlm-tiny", settings, expected=(75,), stop_after=(folder / "run" / "metrics.jsonl", 5)),
             train(program, folder, "smolvlm-tiny", settings)]
    files = run_files(folder / "run")
    return {"exit codes": codes, **{key: files[key] for key in ("metrics", "epochs", "samples", "ledger", "config")},
            "weights": files["weights"]["last"]}


def on_gpu(name, gpu, preset, settings, environment):
    def outcome(program):
        folder = program.fresh_folder(name)
        path = folder / "trace.txt"
        code = train(program, folder, preset, settings, f"virtual:{gpu}",
                     environment={**environment, "VLMTRAIN_VGPU_TRACE": str(path)})
        files = run_files(folder / "run" / f"virtual-{gpu}")
        return {"exit code": code, **files, "launches": trace(path)}
    return Case(name, outcome)


def plan(name, words):
    def outcome(program):
        folder = program.fresh_folder(name)
        code, out = program.run(folder, ["plan", *words, "--json", "--timeline", "step.html"], expected=(0, 3))
        timeline = folder / "step.html"
        return {"exit code": code, "plan": summary(out), "timeline": page_data(timeline) if timeline.exists() else None}
    return Case(name, outcome)


def new_checkpoints(program):
    folder = program.fresh_folder("init")
    codes = [program.run(folder, ["init", "--preset", preset, "--out", preset, "--seed", str(SEED)])[0] for preset in PRESETS]
    return {"exit codes": codes, **{preset: checkpoint(folder / preset) for preset in PRESETS}}


def use(preset):
    """Returns a case that evaluates a checkpoint and generates an answer."""
    name = f"use/{preset}"

    def outcome(program):
        folder = program.fresh_folder(name)
        model = f"{INPUTS}/{preset}"
        inputs.write_config(folder / "train.yaml", {"model.path": model, **TRAINING, **EVALUATION})
        evaluated = program.run(folder, ["eval", "--config", "train.yaml", "--checkpoint", model, "--device", "cpu", "--answers", "answers.jsonl", "--json"])
        answered = program.run(folder, ["generate", "--checkpoint", model, "--image", f"{INPUTS}/data/1.png", "--prompt", "what colour is it?",
                                        "--device", "cpu", "--json"])
        return {"exit codes": [evaluated[0], answered[0]], "evaluation": summary(evaluated[1], MEASURED_IN_RUNS),
                "answer": summary(answered[1], MEASURED_IN_RUNS),
                "answers": json_lines(folder / "answers.jsonl")}
    return Case(name, outcome)


def merged(program):
    folder = program.fresh_folder("use/merge")
    codes = [train(program, folder, "llava-tiny", {**SINGLE, **LORA, "memory.limit_gb": 4})]
    codes.append(program.run(folder, ["merge", "--adapter", "run/checkpoints/step-4", "--out", "merged"])[0])
    return {"exit codes": codes, "merged": checkpoint(folder / "merged")}


def all_cases():
    cases = [Case("init", new_checkpoints)]
    cases += [training(f"train/{name}", *rest) for name, rest in TRAININGS.items()]
    cases += [on_two_ranks(sharding, dtype) for sharding, dtype in SHARDED_RUNS]
    cases += [Case("train/resume-extended", extended), Case("train/resume-stopped", stopped)]
    cases += [use(preset) for preset in PRESETS] + [Case("use/merge", merged)]
    for model, words in MODEL_PLANS.items():
        for gpu, gpu_flags in GPUS.items():
            lacks_bf16 = gpu in WITHOUT_BF16 and "--precision" not in words
            cases.append(plan(f"plan/{model}/{gpu}", [*words, *gpu_flags, *(["--precision", "fp16"] if lacks_bf16 else [])]))
    cases += [on_gpu(f"card/{name}", *rest) for name, rest in VIRTUAL_GPU_RUNS.items()]
    return cases
