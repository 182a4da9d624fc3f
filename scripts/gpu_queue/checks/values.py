"""Compares losses, gradients, weights and answers on the GPU with the CPU: the same program and tiny random checkpoints."""

import json

from harness import comparison
from harness import results
from harness.bench import RunFailed
from harness.check import KERNELS, Check
from harness.comparison import Verdict

STEPS = 5
PRESETS = ["smolvlm-tiny", "llava-tiny", "nanovlm-tiny", "qwen2.5-vl-tiny", "qwen3-vl-tiny", "qwen3.5-tiny", "internvl3-tiny", "internvl3.5-tiny",
           "gemma-3-tiny", "gemma-4-tiny"]
FASTER = {"training.learning_rate": "1.01e-3"}
OTHER_ORDER = {"training.seed": 1}
LORA = {"lora.rank": 4}
# One unit in the last place of bf16 for each of five Newton-Schulz iterations, as in tests/parity/muon_parity_test.cpp.
MUON_UPDATES = 5 * 2 ** -8


def describe_outcome(verdict, fix=KERNELS):
    if verdict.bad:
        return results.failed(verdict.text(), fix, **verdict.figures)
    return results.passed(verdict.text(), **verdict.figures)


def dry_outcome(gpu):
    """Checks a run on a virtual GPU: it completed all steps, and none has values."""
    lines = gpu.lines()
    if len(lines) != STEPS or any(line["loss"] is not None for line in lines):
        return results.failed(f"{len(lines)} of {STEPS} steps, or a step with a loss", "the run on the virtual GPU")
    return results.dry()


def fp32_outcome(gpu, reference, fix=KERNELS):
    """Checks that two fp32 runs agree."""
    verdict = Verdict()
    losses = comparison.losses_apart(gpu, reference)
    verdict.at_most(comparison.FP32_LOSS, losses[0], "first loss")
    gradient, name = comparison.gradients_apart(gpu, reference)
    verdict.at_most(comparison.FP32_GRADIENT, gradient, "worst gradient", name)
    verdict.at_most(comparison.FP32_LATER_LOSS, max(losses), f"worst of {STEPS} losses")
    verdict.at_least(STEPS, min(len(gpu.lines()), len(losses)), "steps")
    verdict.at_most(comparison.FP32_WEIGHTS, comparison.weights_apart(gpu, reference, STEPS), f"weights after {STEPS} steps")
    return describe_outcome(verdict, fix)


def same_in_fp32(preset, overrides=None, gpu_overrides=None, fix=KERNELS):
    """Compares the GPU with `gpu_overrides` and the CPU without them."""
    overrides = overrides or {}

    def do(bench):
        gpu = bench.on_gpu(preset, {**overrides, **(gpu_overrides or {})})
        if bench.is_virtual:
            return dry_outcome(gpu)
        return fp32_outcome(gpu, bench.reference(preset, overrides), fix)

    return do


def rounded_outcome(gpu, exact, rounded, fix=KERNELS):
    """Checks that `gpu` and `rounded` agree in 16 bits with `exact` in fp32."""
    own_gradients = comparison.whole_gradients_apart(rounded, exact)
    own_worst, _ = comparison.gradients_apart(rounded, exact)
    own_losses = comparison.losses_apart(rounded, exact)
    verdict = Verdict()
    # The error of one loss may be small by chance; that of many gradients is not.
    losses = comparison.losses_apart(gpu, exact)
    verdict.at_most(4 * max(own_losses[0], own_gradients / 8), losses[0], "first loss")
    gradients = comparison.whole_gradients_apart(gpu, exact)
    verdict.at_most(3 * own_gradients, gradients, "gradients")
    verdict.at_least(own_gradients / 8, gradients, "gradients")
    worst, name = comparison.gradients_apart(gpu, exact)
    verdict.at_most(4 * own_worst, worst, "worst gradient", name)
    verdict.at_most(4 * max(max(own_losses), own_gradients / 8), max(losses), f"worst of {STEPS} losses")
    verdict.at_most(3 * comparison.whole_gradients_apart(rounded, exact, STEPS),
                    comparison.whole_gradients_apart(gpu, exact, STEPS), f"moments after {STEPS} steps")
    return describe_outcome(verdict, fix)


def about_as_far(preset, overrides, fix=KERNELS):
    """Checks that the GPU in 16 bits is about as far from fp32 as the CPU. A much smaller distance means that it did not use 16 bits."""

    def do(bench):
        gpu = bench.on_gpu(preset, overrides)
        if bench.is_virtual:
            return dry_outcome(gpu)
        exact = bench.reference(preset, {**overrides, "training.precision": "fp32", "training.loss_scale": "auto"})
        return rounded_outcome(gpu, exact, bench.reference(preset, overrides), fix)

    return do


def compressed_states(states, factor):
    """Compares the GPU's compressed moments with the CPU's, relative to the change that compression causes on the CPU."""
    fix = "src/engine/optimizer/compressed_states.cpp"

    def do(bench):
        overrides = {"training.optimizer_states": states}
        gpu = bench.on_gpu("smolvlm-tiny", overrides)
        if bench.is_virtual:
            return dry_outcome(gpu)
        exact, reference = bench.reference("smolvlm-tiny"), bench.reference("smolvlm-tiny", overrides)
        own = comparison.weights_apart(reference, exact, STEPS)
        own_losses = max(comparison.losses_apart(reference, exact))
        verdict = Verdict()
        losses = comparison.losses_apart(gpu, reference)
        verdict.at_most(comparison.FP32_LOSS, losses[0], "first loss")
        verdict.at_most(max(factor * own_losses, comparison.FP32_LATER_LOSS), max(losses), f"worst of {STEPS} losses")
        verdict.at_most(factor * own, comparison.weights_apart(gpu, reference, STEPS), f"weights after {STEPS} steps")
        return describe_outcome(verdict, fix)

    return do


def muon(bench):
    """Compares Muon on the GPU with the CPU. Both round Newton-Schulz iterations to bf16."""
    overrides = {"training.optimizer": "muon"}
    gpu = bench.on_gpu("smolvlm-tiny", overrides)
    if bench.is_virtual:
        return dry_outcome(gpu)
    reference = bench.reference("smolvlm-tiny", overrides)
    verdict = Verdict()
    losses = comparison.losses_apart(gpu, reference)
    verdict.at_most(comparison.FP32_LOSS, losses[0], "first loss")
    verdict.at_most(MUON_UPDATES, comparison.weights_apart(gpu, reference, STEPS), f"weights after {STEPS} steps")
    return describe_outcome(verdict, "src/engine/optimizer/muon.cpp")


def dropout(bench):
    """Checks that dropout does not depend on the split of a step. GPU and CPU draw different masks, so the GPU is its own reference."""
    overrides = {**LORA, "lora.dropout": 0.3}
    whole = bench.kept_run("gpu", bench.device, "smolvlm-tiny", {**overrides, "training.micro_batch_size": 4})
    cut = bench.on_gpu("smolvlm-tiny", {**overrides, "training.micro_batch_size": 1, "memory.recompute": "all"})
    if bench.is_virtual:
        return dry_outcome(cut)
    none = bench.kept_run("gpu", bench.device, "smolvlm-tiny", {**LORA, "training.micro_batch_size": 4})
    verdict = Verdict()
    losses = comparison.losses_apart(cut, whole)
    verdict.at_most(comparison.FP32_LATER_LOSS, max(losses), f"cut and recomputed against whole, worst of {STEPS} losses")
    gradient, name = comparison.gradients_apart(cut, whole)
    verdict.at_most(comparison.FP32_GRADIENT, gradient, "worst gradient", name)
    verdict.at_least(1e-2, comparison.whole_gradients_apart(whole, none), "gradients against no dropout")
    return describe_outcome(verdict, "src/nn/layers/dropout.cpp, and the state that recomputation saves for it (src/nn/layers/recompute.cpp)")


def parse_json(ended, what):
    if ended.code != 0:
        raise RunFailed(what, ended)
    return json.loads(ended.out.strip().splitlines()[-1])


def answers(preset):
    def do(bench):
        if bench.is_virtual:
            return results.dry(results.NO_VALUES + "; only training has a dry run")
        data = bench.small_data()
        apart, tokens = [], 0
        for image, prompt in [("1.png", "what colour is the circle?"), (None, "the red star is")]:
            token_ids = []
            for side, device in [("reference", "cpu"), ("gpu", bench.device)]:
                seed = bench.fault.get("seed", 0) if side == "gpu" else 0
                words = ["generate", "--checkpoint", bench.checkpoint(preset, seed), "--prompt", prompt, "--max-new-tokens", 24,
                         "--device", device, "--json"] + (["--image", data / image] if image else [])
                token_ids.append(parse_json(bench.run(words, bench.environment(side)), "generate")["token_ids"])
            tokens += len(token_ids[0])
            if token_ids[0] != token_ids[1]:
                first = next((i for i, (a, b) in enumerate(zip(*token_ids)) if a != b), min(map(len, token_ids)))
                apart.append(f"'{prompt}' differs from token {first + 1} on")
        if apart:
            return results.failed("; ".join(apart), "src/engine/generation/generate.cpp and attention_to_slots in src/nn/attention/attention.cpp "
                                  "(a near tie of two tokens is possible: compare with --no-cache)", tokens=tokens)
        return results.passed(f"2 answers, {tokens} tokens, are the CPU's", tokens=tokens)

    return do


def evaluation(preset):
    def do(bench):
        if bench.is_virtual:
            return results.dry(results.NO_VALUES + "; only training has a dry run")
        config = bench.work / "eval.yaml"
        bench.write_config(config, {"data.eval": bench.small_data() / "train.json", "training.precision": "fp32"})
        losses = []
        for side, device in [("reference", "cpu"), ("gpu", bench.device)]:
            seed = bench.fault.get("seed", 0) if side == "gpu" else 0
            words = ["eval", "--config", config, "--checkpoint", bench.checkpoint(preset, seed), "--device", device,
                     "--max-new-tokens", 1, "--json"]
            losses.append(parse_json(bench.run(words, bench.environment(side)), "eval")["loss"])
        verdict = Verdict()
        verdict.at_most(comparison.FP32_LOSS, abs(losses[1] - losses[0]) / losses[0], "loss")
        return describe_outcome(verdict)

    return do


def fp32_checks(_):
    checks = []
    for preset in PRESETS:
        faults = {"a learning rate 1 % higher": FASTER, "samples in another order": OTHER_ORDER}
        checks.append(Check(f"{preset}: fp32 training", 20, same_in_fp32(preset), faults))
    for preset in PRESETS:
        checks.append(Check(f"{preset}: fp32 answers", 20, answers(preset), {"other weights": {"seed": 1}}))
    for preset in PRESETS[:1] + PRESETS[3:]:
        checks.append(Check(f"{preset}: fp32 evaluation", 10, evaluation(preset), {"other weights": {"seed": 1}}))
    return checks


def variant_checks(_):
    checks = []

    def add(name, do, **faults):
        checks.append(Check(name, 20, do, {what.replace("_", " "): overrides for what, overrides in faults.items()}))

    bf16, fp16 = {"training.precision": "bf16"}, {"training.precision": "fp16", "training.loss_scale": 1024}
    windows = "flash attention with windows: src/nn/attention/attention.cpp, segments of src/models/qwen2_vl"
    for preset in PRESETS:
        add(f"{preset}: bf16" + (", flash attention with windows" if "qwen" in preset else ""),
            about_as_far(preset, bf16, windows if "qwen" in preset else KERNELS),
            fp32_in_its_place={"training.precision": "fp32"}, samples_in_another_order=OTHER_ORDER)

    def add_fp16(preset):
        add(f"{preset}: fp16", about_as_far(preset, fp16), fp32_in_its_place={"training.precision": "fp32", "training.loss_scale": "auto"},
            bf16_in_its_place={"training.precision": "bf16", "training.loss_scale": "auto"})

    add_fp16(PRESETS[0])
    for quantization, other in (("nf4", "int8"), ("int8", "nf4")):
        quantized = {**LORA, "model.quantization": quantization}
        add(f"smolvlm-tiny: {quantization} with LoRA, fp32", same_in_fp32("smolvlm-tiny", quantized, fix="src/nn/weights/quantized_weight.cpp"),
            **{f"{other}_in_its_place": {"model.quantization": other}})
    add("qwen2.5-vl-tiny: nf4 with LoRA, bf16",
        about_as_far("qwen2.5-vl-tiny", {**LORA, "model.quantization": "nf4", **bf16}, "src/nn/weights/quantized_weight.cpp"),
        fp32_in_its_place={"training.precision": "fp32"})
    # Codes at a rounding boundary may differ; bf16 states round stochastically, and the GPU draws other numbers.
    add("smolvlm-tiny: 8-bit optimizer states", compressed_states("8bit", 0.5), fp32_states={"training.optimizer_states": "fp32"})
    add("smolvlm-tiny: bf16 optimizer states", compressed_states("bf16", 2), a_learning_rate_1_percent_higher=FASTER)
    add("smolvlm-tiny: Muon", muon, AdamW_in_its_place={"training.optimizer": "adamw"}, four_iterations={"training.muon_ns_steps": 4})
    layouts = "src/nn/layers/recompute.cpp, src/engine/step/step.cpp: no layout of a step changes its result"
    add("smolvlm-tiny: everything recomputed", same_in_fp32("smolvlm-tiny", gpu_overrides={"memory.recompute": "all"}, fix=layouts),
        a_learning_rate_1_percent_higher=FASTER)
    add("qwen2.5-vl-tiny: everything recomputed", same_in_fp32("qwen2.5-vl-tiny", gpu_overrides={"memory.recompute": "all"}, fix=layouts),
        a_learning_rate_1_percent_higher=FASTER)
    cuts = {"training.micro_batch_size": 1, "memory.vision_tiles_per_pass": 1, "memory.loss_chunk_rows": 5}
    add("smolvlm-tiny: cut into single samples, tiles and few rows", same_in_fp32("smolvlm-tiny", gpu_overrides=cuts, fix=layouts),
        a_learning_rate_1_percent_higher=FASTER)
    add("gemma-4-tiny: per-layer embeddings in host memory",
        same_in_fp32("gemma-4-tiny", LORA, gpu_overrides={"memory.per_layer_embeddings": "host"}, fix="src/memory/host_arena.cpp"),
        a_learning_rate_1_percent_higher=FASTER)
    add("smolvlm-tiny: dropout", dropout, another_seed={"training.seed": 1}, no_dropout={"lora.dropout": 0})
    add_fp16(PRESETS[3])  # last: a CPU without products in fp16 takes a minute
    return checks

