"""Compares two ranks with one process on the same device: losses, gradients and weights are equal except for rounding."""

import json

from harness import comparison
from harness import inputs
from harness import results
from harness.check import Check
from checks.values import FASTER, LORA, OTHER_ORDER, STEPS, fp32_outcome, dry_outcome, rounded_outcome

LAUNCH = ["--nproc-per-node", "2"]
SUMS = ("the ranks' sums: src/distributed/collectives.cpp, src/nccl/process_group.cpp, the buckets of gradients in src/engine; "
        "repeat with --device cpu to see whether it is NCCL")
REPEATED = "the ranks' agreement: src/distributed/ranks.cpp, src/data/loader/loader.cpp"
SECONDS = 60  # seconds of a run of a tiny model
HANGS = "the run of two ranks (NCCL_DEBUG=INFO logs what NCCL does; rank-1.log in the newest folder of WORK/runs)"
HALF = {"training.global_batch_size": 2, "training.micro_batch_size": 1}


def with_mixed_data(bench, overrides):
    """Returns settings in which every second sample has no image, so in some steps only one rank has gradients of the tower."""
    folder = bench.work / "mixed-data"
    if not (folder / "train.json").exists():
        inputs.write_small_data(folder, inputs.MIXED_DATA)
    return {"data.train": folder / "train.json", "output.log_samples": True, **overrides}


def one_process(bench, preset, overrides):
    return bench.kept_run("one", bench.device, preset, with_mixed_data(bench, overrides))


def two_ranks(bench, preset, overrides, side="ranks"):
    with bench.at_most(SECONDS, HANGS):
        return bench.kept_run(side, bench.device, preset, with_mixed_data(bench, overrides), LAUNCH)


def steps_of_uneven_ranks(bench, one):
    """Counts the steps in which only one rank has images: rank r has every second sample from the r-th on."""
    records = json.loads((bench.work / "mixed-data" / "train.json").read_text())
    has_images = {record["id"]: bool(record["image"]) for record in records}
    steps = [json.loads(line)["ids"] for line in (one.folder / "samples.jsonl").read_text().splitlines()]
    return sum(any(has_images[name] for name in ids[0::2]) != any(has_images[name] for name in ids[1::2]) for ids in steps)


def same_in_fp32(preset, overrides=None, of_ranks=None):
    """Returns a check. `of_ranks`: settings of the ranks only, which must not change the result."""
    overrides = overrides or {}

    def do(bench):
        ranks = two_ranks(bench, preset, {**overrides, **(of_ranks or {}), **bench.fault})
        if bench.is_virtual:
            return dry_outcome(ranks)
        one = one_process(bench, preset, overrides)
        outcome = fp32_outcome(ranks, one, SUMS)
        uneven = steps_of_uneven_ranks(bench, one)
        outcome.text += f"; {uneven} of {STEPS} steps with images on one rank alone"
        outcome.figures["uneven_steps"] = uneven
        return outcome

    return do


def about_as_far(preset):
    bf16 = {"training.precision": "bf16"}

    def do(bench):
        ranks = two_ranks(bench, preset, {**bf16, **bench.fault})
        if bench.is_virtual:
            return dry_outcome(ranks)
        return rounded_outcome(ranks, one_process(bench, preset, {}), one_process(bench, preset, bf16), SUMS)

    return do


def repetition(preset):
    """Checks a repetition: bit-exact on the CPU; NCCL guarantees no order of its sums."""

    def do(bench):
        first, again = two_ranks(bench, preset, {}), two_ranks(bench, preset, bench.fault, side="ranks-again")
        if bench.is_virtual:
            return dry_outcome(again)
        a, b = (run.folder / "checkpoints" / f"step-{STEPS}" for run in (first, again))
        names = sorted(path.relative_to(a) for path in a.rglob("*.safetensors"))
        unequal = [str(name) for name in names if not (b / name).exists() or (a / name).read_bytes() != (b / name).read_bytes()]
        apart = comparison.weights_apart(again, first, STEPS)
        figures = {"files": len(names), "unequal": unequal, "weights_apart": apart}
        text = f"{len(names) - len(unequal)} of {len(names)} files are equal to the bit; weights {apart:.1e} of their way apart"
        if not bench.is_cpu:
            return results.measured(text, **figures)
        return results.failed(text, REPEATED, **figures) if unequal or not names else results.passed(text, **figures)

    return do


def checks():
    all_checks = []
    faults = {"a learning rate 1 % higher": FASTER, "samples in another order": OTHER_ORDER, "half of the samples": HALF}
    dropped = {**LORA, "lora.dropout": 0.3}
    for preset in ("smolvlm-tiny", "qwen2.5-vl-tiny"):
        all_checks.append(Check(f"{preset}: fp32, mixed batches", 20, same_in_fp32(preset), faults))
        all_checks.append(Check(f"{preset}: LoRA with dropout, fp32, single samples", 20,
                           same_in_fp32(preset, dropped, {"training.micro_batch_size": 1}),
                           {"no dropout": {"lora.dropout": 0}, "another seed": OTHER_ORDER}))
        all_checks.append(Check(f"{preset}: bf16, mixed batches", 20, about_as_far(preset),
                           {"fp32 in its place": {"training.precision": "fp32"}, "half of the samples": HALF}))
    shared = {"distributed.sharding": "full"}
    all_checks.append(Check("smolvlm-tiny: the optimizer's state in parts, fp32", 20,
                       same_in_fp32("smolvlm-tiny", {}, {"distributed.sharding": "optimizer"}), faults))
    all_checks.append(Check("smolvlm-tiny: weights in parts, fp32, mixed batches, single samples", 20,
                       same_in_fp32("smolvlm-tiny", {}, {**shared, "training.micro_batch_size": 1}), faults))
    all_checks.append(Check("qwen2.5-vl-tiny: weights in parts, NF4, LoRA with dropout, recomputed", 20,
                       same_in_fp32("qwen2.5-vl-tiny", {**dropped, "model.quantization": "nf4"}, {**shared, "memory.recompute": "all"}),
                       {"no dropout": {"lora.dropout": 0}}))
    all_checks.append(Check("smolvlm-tiny: the same ranks once more", 20, repetition("smolvlm-tiny"), {"samples in another order": OTHER_ORDER}))
    return all_checks
