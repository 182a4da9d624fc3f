"""Videos, volumes and masks: training in fp32 and the scores of masks, on the GPU against the CPU."""

from checks.values import FASTER, OTHER_ORDER, parse_json, describe_outcome, same_in_fp32
from harness import comparison
from harness import media_inputs
from harness import results
from harness.check import Check
from harness.comparison import Verdict

MAX_LENGTH = 512
MASKS = "prs-med-tiny"
# A pixel whose logit is zero except for rounding may be on either side of the threshold. One of the smallest mask's 622 pixels moves its
# Dice by 8e-4 and the mean of four or five masks by 2e-4; the bound is five such pixels. They move the Hausdorff distance by a pixel.
SCORE_TOLERANCE, DISTANCE_TOLERANCE = 1e-3, 1.0
# Steps until the model segments the two structures, which have the same place in all images; scores of empty masks show nothing.
SCORED_STEPS = 64
SCORED = {"training.max_steps": SCORED_STEPS, "training.learning_rate": "2.0e-3", "training.micro_batch_size": 4, "output.save_steps": 0}
LEAST_DICE = 0.2
FIXES = {"video": "src/image (frames), the positions of frames in src/models", "volume": "src/models/brain_llava, src/image (volumes)",
         "mask": "src/models/prs_med, src/nn/layers/losses.cpp, src/nn/layers/convolution.cpp"}
WRITERS = {"video": media_inputs.write_video_data, "volume": media_inputs.write_volume_data, "mask": media_inputs.write_mask_data}


def make_data(bench, kind):
    """Writes the records once and returns their path."""
    folder = bench.work / f"{kind}-data"
    with bench.lock(folder):
        return folder / "train.json" if (folder / "train.json").exists() else WRITERS[kind](folder)


def make_overrides(bench, kind):
    return {"data.train": make_data(bench, kind), "data.max_length": MAX_LENGTH}


def trained(preset, kind):
    def do(bench):
        return same_in_fp32(preset, make_overrides(bench, kind), fix=FIXES[kind])(bench)

    return do


def scored(bench):
    """Compares the mask scores of a checkpoint that was trained on the device, evaluated on both devices."""
    if bench.is_virtual:
        return results.dry(results.NO_VALUES + "; only training has a dry run")
    run = bench.kept_run("scored", bench.device, MASKS, {**make_overrides(bench, "mask"), **SCORED})
    trained_on_device = run.folder / "checkpoints" / f"step-{SCORED_STEPS}"
    config = bench.work / "mask-eval.yaml"
    bench.write_config(config, {"data.eval": make_data(bench, "mask"), "data.max_length": MAX_LENGTH, "training.precision": "fp32"})
    evaluations = []
    for side, device in (("reference", "cpu"), ("gpu", bench.device)):
        checkpoint = bench.checkpoint(MASKS, bench.fault["seed"]) if side == "gpu" and "seed" in bench.fault else trained_on_device
        words = ["eval", "--config", config, "--checkpoint", checkpoint, "--device", device, "--max-new-tokens", 1, "--json"]
        evaluations.append(parse_json(bench.run(words, bench.environment(side)), "eval"))
    reference, gpu = evaluations
    verdict = Verdict()
    # A loss near zero is a difference of larger numbers.
    verdict.at_most(comparison.FP32_LOSS, abs(gpu["loss"] - reference["loss"]) / max(1, reference["loss"]), "loss")
    groups = {"all": [each["masks"] for each in evaluations]}
    for name in reference["masks"]["by_structure"]:
        groups[name] = [each["masks"]["by_structure"][name] for each in evaluations]
    for name, (expected, actual) in groups.items():
        for score, bound in (("dice", SCORE_TOLERANCE), ("iou", SCORE_TOLERANCE), ("hausdorff95", DISTANCE_TOLERANCE)):
            if expected[score] is None or actual[score] is None:
                if expected[score] != actual[score]:
                    verdict.bad.append(f"{name}: {score} is {actual[score]}; on the CPU {expected[score]}")
                continue
            verdict.at_most(bound, abs(actual[score] - expected[score]), f"{score} of {name}")
    verdict.at_least(LEAST_DICE, reference["masks"]["dice"], "Dice of all, on the CPU")
    verdict.figures["scores"] = {name: pair[1] for name, pair in groups.items()}
    return describe_outcome(verdict, FIXES["mask"])


def checks(_):
    faults = {"a learning rate 1 % higher": FASTER, "samples in another order": OTHER_ORDER}
    listed = [("smolvlm2-tiny", "video"), ("qwen2.5-vl-tiny", "video"), ("brain-llava-tiny", "volume"), (MASKS, "mask")]
    return [*[Check(f"{preset}, {kind}s: fp32 training", 15, trained(preset, kind), faults) for preset, kind in listed],
            Check(f"{MASKS}: scores of masks", 18, scored, {"other weights": {"seed": 1}})]
