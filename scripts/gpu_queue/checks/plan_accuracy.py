"""Compares planned with measured memory and step times at limits on the GPU's memory."""

import statistics

from checks.planned_job import WARM_UP, Job, plan_arguments, context_bytes, gigabytes, gpu_bytes, measure_seconds, total_bytes
from harness import results
from harness.check import Check

# Each step is the worst batch, as in the plan. The remaining difference is the driver's rounding.
PEAK_TOLERANCE = 0.03
# A model of a few MB needs tens of MB of activations, and the allocator takes 20 MiB at a time.
PEAK_TOLERANCE_OF_TINY_MODELS = 0.1
# Predicted times rank plans on one GPU; a larger factor than this makes them misleading.
TIME_FACTOR = 2.0
# The limits in GB, and those of --dry, whose tiny models need little more than the context of 0.87 GB.
# Above this, tiny models are planned as on the whole GPU.
DRY_CAPS = {8: 1.05, 16: 1.2, 24: 1.4, 40: 1.4}
# Long answers with --dry, so that activations are large compared with the allocator's 20 MiB.
DRY_WORDS, DRY_LENGTH = 1500, 8192
# Seconds of a check on an H200, without the creation of its checkpoint.
CHECK_SECONDS = {"qwen2.5-vl-3b": 21, "llava-1.5-7b": 60, "smolvlm-256m": 20}
# Half the samples of a smaller model, so that a step takes about as long.
LARGE_BATCH = 8
# Seconds to create a checkpoint with random weights on an H200's machine, with 3 and 7 billion 16-bit parameters.
CREATION_SECONDS = {"qwen2.5-vl-3b": 20, "llava-1.5-7b": 45, "smolvlm-256m": 4, "smolvlm-500m": 6}
TINY = {"smolvlm-256m": "smolvlm-tiny", "smolvlm-500m": "smolvlm-tiny", "qwen2.5-vl-3b": "qwen2.5-vl-tiny", "qwen2.5-vl-7b": "qwen2.5-vl-tiny", "llava-1.5-7b": "llava-tiny"}


def dry_job(job):
    """Returns the same job on the tiny preset of the family."""
    overrides = {**job.overrides, "data.max_length": DRY_LENGTH, **({"lora.rank": 4} if "lora.rank" in job.overrides else {})}
    return Job(TINY[job.preset], overrides, job.images, DRY_WORDS, job.global_batch, dtype=job.dtype)


def at_cap(job, cap, next_larger=False):
    """Checks that a run at a limit, or on the whole GPU, takes the planned memory and time. `next_larger`: also that the next larger
    micro-batch does not fit."""

    def do(bench):
        job_settings, limit_gb = (dry_job(job), DRY_CAPS.get(cap)) if bench.is_virtual else (job, cap)
        whole = gpu_bytes(bench.device)
        if cap is not None and whole is not None and cap * 1e9 > whole:
            return results.skipped(f"the GPU has {gigabytes(whole)}")
        name = f"{job_settings.preset}-{cap or 'whole'}-{'-'.join(str(value) for value in job_settings.overrides.values())}"
        run, ended, nvml = job_settings.run(bench, name, {"memory.limit_gb": limit_gb} if limit_gb else {}, expected=(0, 3))
        plan = run.plan()
        if ended.code == 3 and plan is None:
            return results.measured(f"the plan refuses it: {ended.reason()}", refused=True)
        if ended.code == 3:
            return results.failed(f"planned, and then: {ended.reason()}", "src/planner/model/target.cpp, and the guard's lines in events.jsonl")
        lines = run.lines()
        whole = total_bytes(plan, lines)
        tolerance = PEAK_TOLERANCE_OF_TINY_MODELS if bench.is_virtual else PEAK_TOLERANCE
        comparison = compare(plan, lines, has_times=not bench.is_virtual, tolerance=tolerance)
        comparison.update(context_bytes=context_bytes(lines[-1], whole), nvml_process_bytes=nvml, run_seconds=run.seconds)
        bad = comparison.pop("bad")
        if next_larger:
            larger_fails, measured_value = next_larger_fails(bench, job_settings, name, plan, whole)
            comparison["next_larger"] = measured_value
            if not larger_fails:
                bad.append("the next larger micro-batch fits too, or was refused where it fits (src/planner/search/config_search.cpp)")
        text = describe(comparison)
        if bad:
            return results.failed(text, "; ".join(bad), **comparison)
        return results.dry(text, **comparison) if bench.is_virtual else results.passed(text, **comparison)

    return do


def compare(plan, lines, has_times, tolerance=PEAK_TOLERANCE):
    """Returns the figures of a run and, under `bad`, its differences from the plan."""
    memory, measured, recompute = plan["memory"], plan["measured"], plan["recompute"]
    comparison = {"micro_batch": plan["micro_batch_size"], "accumulation": plan["gradient_accumulation_steps"],
             "recompute": f"{recompute['vision_blocks']}+{recompute['language_blocks']}",
             "tokens": lines[-1]["tokens"], "allocation_retries": measured["allocation_retries"],
             "oom_splits": sum(line["oom_splits"] for line in lines), "forecast_splits": sum(line["forecast_splits"] for line in lines),
             "limit_bytes": plan["limit_bytes"], "predicted_seconds": plan["step_seconds"], "bad": []}
    for kind in ("allocated", "reserved"):
        planned, measured_value = memory[f"{kind}_peak_bytes"], measured[f"{kind}_peak_bytes"]
        comparison[f"{kind}_planned_bytes"], comparison[f"{kind}_measured_bytes"] = planned, measured_value
        if abs(measured_value / planned - 1) > tolerance:
            comparison["bad"].append(f"the {kind} peak is {100 * (measured_value / planned - 1):+.1f} % of the plan's: what the virtual GPU does not "
                                "model (src/vgpu; compare two runs' memory step by step)")
    if comparison["allocation_retries"] or comparison["oom_splits"] or comparison["forecast_splits"]:
        comparison["bad"].append("the planned batch did not run undisturbed (src/planner/model/target.cpp: context and margin)")
    if not has_times:
        return comparison
    seconds = measure_seconds(lines)
    ratio = seconds / plan["step_seconds"]
    comparison.update(measured_seconds=seconds, measured_to_predicted_time=ratio, tokens_per_second=comparison["tokens"] / seconds,
                 first_step_seconds=lines[0]["step_seconds"],
                 data_wait_seconds=statistics.median(line["data_wait_seconds"] for line in lines[WARM_UP:]))
    if not 1 / TIME_FACTOR <= ratio <= TIME_FACTOR:
        comparison["bad"].append("predicted times are off (the efficiencies in src/planner/dry_run/cost_recorder.cpp)")
    return comparison


def describe(comparison):
    text = f"{comparison['micro_batch']} x {comparison['accumulation']}, {comparison['recompute']} blocks recomputed"
    for kind in ("allocated", "reserved"):
        planned, measured_value = comparison[f"{kind}_planned_bytes"], comparison[f"{kind}_measured_bytes"]
        text += f"; {kind} {gigabytes(measured_value)}, {100 * (measured_value / planned - 1):+.2f} % of the plan"
    text += f"; {comparison['allocation_retries']} retries, {comparison['oom_splits']} + {comparison['forecast_splits']} splits"
    text += f"; predicted {comparison['predicted_seconds']:.3f} s a step"
    if "measured_seconds" in comparison:
        text += f", measured {comparison['measured_seconds']:.3f} s, {comparison['measured_to_predicted_time']:.2f} of it"
    text += f"; context {gigabytes(comparison['context_bytes'])}, NVML {gigabytes(comparison['nvml_process_bytes'])}"
    return text + (f"; next larger micro-batch {comparison['next_larger']}" if "next_larger" in comparison else "")


def next_larger_fails(bench, job, name, plan, whole_bytes):
    """Runs the next larger micro-batch with the plan's other choices and the plan's limit on the allocator.

    That limit is not configured, so the program must retry, split or fail. Returns whether it did, and the observation.
    """
    micro, accumulation = plan["micro_batch_size"], plan["gradient_accumulation_steps"]
    batch = micro * accumulation
    larger = next((size for size in range(micro + 1, batch + 1) if batch % size == 0), None)
    if larger is None:
        return True, "does not exist"
    reach = plan["gpu_bytes"] - plan["memory"]["context_bytes"]
    choices = {**plan_arguments(plan), "training.micro_batch_size": larger, "memory.mode": "aggressive", "memory.look_ahead": False,
               "training.max_steps": 2}
    capped = {"VLMTRAIN_RESERVED_LIMIT_BYTES": str(reach)}
    run, ended, _ = job.run(bench, name + "-larger", choices, environment=capped, expected=(0, 3, 5))
    if ended.code == 3 and run.plan() is None:
        # Its memory grows at most by this factor.
        most = larger / micro * plan["memory"]["reserved_peak_bytes"] + plan["memory"]["context_bytes"]
        return most > 0.98 * whole_bytes, f"{larger}: not tried, the planner refuses it ({ended.reason()})"
    if ended.code != 0:
        return True, f"{larger}: exit code {ended.code}, {ended.reason()}"
    retries, splits = run.plan()["measured"]["allocation_retries"], sum(line["oom_splits"] for line in run.lines())
    measured_value = f"{larger}: {retries} retries, {splits} splits"
    # A micro-batch that fits only within the margin is not one that the plan missed.
    limit = plan["limit_bytes"]
    if not (retries or splits) and run.plan()["measured"]["reserved_peak_bytes"] + plan["memory"]["context_bytes"] > limit:
        return True, measured_value + ", inside the margin"
    return bool(retries or splits), measured_value


FULL = Job("smolvlm-256m")
LORA = Job("qwen2.5-vl-3b", {"lora.rank": 16}, global_batch=LARGE_BATCH, dtype="bfloat16")
QUANTIZED = Job("llava-1.5-7b", {"lora.rank": 16, "model.quantization": "nf4"}, global_batch=LARGE_BATCH, dtype="bfloat16")
SMALL_QUANTIZED = Job("smolvlm-500m", {"lora.rank": 16, "model.quantization": "nf4"})
HALF = Job("smolvlm-256m", {"training.precision": "fp16", "training.optimizer_states": "8bit"})
FIXED_SEGMENTS = Job("smolvlm-256m", {"memory.expandable_segments": False})


def make_title(job):
    if "model.quantization" in job.overrides:
        return f"{job.preset}, LoRA on NF4"
    return f"{job.preset}, {'LoRA' if 'lora.rank' in job.overrides else 'full'}"


def caps_in_order():
    """The grid of jobs and limits: each model once, then the tightest limits, then those with memory to spare."""
    return [(LORA, 40), (FULL, 16), (QUANTIZED, 16), (LORA, 16), (QUANTIZED, 8), (FULL, 8), (LORA, 80), (QUANTIZED, 40), (FULL, 40),
            (LORA, 60), (FULL, 80), (QUANTIZED, 80), (FULL, 60), (QUANTIZED, 60), (LORA, 8)]


def checks(bench):
    if bench.is_cpu:
        return []
    created = set()

    def seconds(job, own):
        """Adds the creation of the checkpoint to the first check that needs it."""
        extra = 0 if job.preset in created or bench.is_virtual else CREATION_SECONDS[job.preset]
        created.add(job.preset)
        return own + extra

    grid = [(job, cap) for job, cap in caps_in_order() if cap in DRY_CAPS or not bench.is_virtual]
    listed = [Check(f"{make_title(job)}, {cap} GB", seconds(job, CHECK_SECONDS[job.preset]), at_cap(job, cap)) for job, cap in grid]
    return listed + [
        Check("smolvlm-256m, full, 24 GB and the next larger micro-batch", 25, at_cap(FULL, 24, next_larger=True)),
        Check("smolvlm-256m, full, whole GPU", 15, at_cap(FULL, None)),
        Check("smolvlm-500m, LoRA on NF4, 24 GB and the next larger micro-batch", seconds(SMALL_QUANTIZED, 30),
              at_cap(SMALL_QUANTIZED, 24, next_larger=True)),
        Check("smolvlm-256m, fp16, 8-bit states, 16 GB", 18, at_cap(HALF, 16)),
        Check("smolvlm-256m, fixed segments, 16 GB", 18, at_cap(FIXED_SEGMENTS, 16))]


# Seconds of a run with optimizer state or weights in host memory on an H200, estimated.
OFFLOAD_SECONDS = {"smolvlm-256m": 15, "qwen2.5-vl-7b": 45}
OFFLOADED_CREATION_SECONDS = 45


def offload_checks(bench):
    """Runs with optimizer state, weights, gradients and inputs of blocks in host memory next to resident ones."""
    if bench.is_cpu:
        return []
    listed = []
    for offload in ("none", "optimizer", "weights", "gradients"):
        job = Job("smolvlm-256m", {"memory.offload": offload})
        listed.append(Check(f"{make_title(job)}, offload {offload}", OFFLOAD_SECONDS[job.preset], at_cap(job, None)))
    everything = Job("smolvlm-256m", {"memory.offload": "gradients", "memory.offload_activations": True, "memory.recompute": "all"})
    listed.append(Check(f"{make_title(everything)}, everything in host memory", OFFLOAD_SECONDS[everything.preset], at_cap(everything, None)))
    for offload, masters, cap in (("none", "stochastic", 80), ("optimizer", "split", 80), ("weights", "split", 60)):
        overrides = {"memory.offload": offload, "training.optimizer_states": "8bit", "training.master_weights": masters}
        job = Job("qwen2.5-vl-7b", overrides, dtype="bfloat16")
        extra = OFFLOADED_CREATION_SECONDS if offload == "none" else 0
        listed.append(Check(f"{make_title(job)}, 8-bit states, {masters} masters, offload {offload}, {cap} GB",
                            extra + OFFLOAD_SECONDS[job.preset], at_cap(job, cap)))
    return listed
