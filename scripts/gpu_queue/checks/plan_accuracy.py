"""Planned against measured: peaks, the CUDA context, step times, at several caps of the GPU's memory."""

import statistics
import subprocess
import threading

from harness import inputs
from harness import results
from harness.bench import RunFailed
from harness.check import Check

STEPS, STEPS_ON_A_VIRTUAL_GPU = 12, 4
WARM_UP = 3
GLOBAL_BATCH = 16
IMAGES, ANSWER_WORDS = 2, 200
# A plan is of the worst batch, which each step here is: what differs is how the driver rounds.
PEAK_TOLERANCE = 0.03
# Predicted times are there to compare plans on one GPU; where they are off by more than this they mislead.
TIME_FACTOR = 2.0


class GpuMemory:
    """The most device memory that a process held, as NVML says through nvidia-smi; None without it, and where the driver does
    not know the process by its number (in most containers)."""

    def __init__(self, process):
        self.number, self.most, self.ended = process.pid, None, threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def watch(self):
        query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
        while not self.ended.wait(0.5):
            try:
                lines = subprocess.run(query, capture_output=True, text=True, check=True, timeout=10).stdout.splitlines()
                used = [int(size) * 2 ** 20 for number, size in (line.split(", ") for line in lines) if int(number) == self.number]
            except (OSError, ValueError, subprocess.SubprocessError):
                return
            self.most = max(used + ([self.most] if self.most else []), default=None)

    def finish(self):
        self.ended.set()
        self.thread.join(timeout=15)


class Job:
    """What is trained: a preset with a random start on samples that are all alike."""

    def __init__(self, preset, overrides=None, images=IMAGES, words=ANSWER_WORDS, global_batch=GLOBAL_BATCH, model=None):
        self.preset, self.overrides, self.model = preset, overrides or {}, model
        self.images, self.words, self.global_batch = images, words, global_batch

    def settings(self, bench):
        data = bench.work / f"worst-{self.images}-{self.words}-{self.global_batch}"
        if not (data / "train.json").exists():
            inputs.write_worst_data(data, self.images, self.words, self.global_batch)
        return {"model.path": self.model or bench.checkpoint(self.preset), "data.train": data / "train.json",
                "data.num_workers": 8, "training.global_batch_size": self.global_batch,
                "training.max_steps": STEPS_ON_A_VIRTUAL_GPU if bench.is_virtual else STEPS, "training.precision": "bf16",
                "training.learning_rate": "1.0e-5", "output.save_steps": 0, "output.keep": 1, "output.sample_predictions": 0,
                "output.report": False, "output.tensorboard": False, **self.overrides}

    def run(self, bench, name, overrides, environment=None, expected=(0,)):
        """The run, which must end with one of `expected`, its exit code and what nvidia-smi saw of it."""
        folder = bench.work / "truth" / name
        inputs.clear(folder)
        watchers = []

        def watch(process):
            watchers.append(GpuMemory(process))
            return watchers[-1]

        ended, run = bench.try_train(folder, bench.device, {**self.settings(bench), **overrides}, environment=environment, watch=watch)
        if ended.code not in expected:
            raise RunFailed(f"{name}", ended)
        inputs.clear(run.folder / "checkpoints")
        return run, ended, watchers[0].most


def gigabytes(size):
    return "-" if size is None else f"{size / 1e9:.3f} GB"


def context_bytes(line, card_bytes):
    """What of the GPU is taken beside what PyTorch reserves, at the end of a step."""
    return card_bytes - line["device_free_bytes"] - line["reserved_bytes"]


def context(bench):
    """What the process takes of the GPU beside what PyTorch reserves, against what the plan has left for it."""
    job = Job("smolvlm-tiny", {"training.max_steps": 6, "memory.empty_cache_above": 1}, images=1, words=20, global_batch=2)
    run, _, nvml = job.run(bench, "context", {})
    plan, last = run.plan(), run.lines()[-1]
    measured = context_bytes(last, plan["card_bytes"])
    planned = plan["memory"]["context_bytes"]
    own = nvml - last["reserved_bytes"] if nvml else None
    figures = {"planned_bytes": planned, "measured_bytes": measured, "nvml_process_bytes": nvml}
    text = f"context {gigabytes(measured)} of the GPU, {gigabytes(own)} of this process; planned {gigabytes(planned)}"
    if bench.is_virtual:
        return results.dry(text + ", as the virtual GPU was told", **figures)
    if measured > planned:
        return results.failed(text, "the context that a plan leaves room for: src/planner/limit.cpp (or another process on the GPU)", **figures)
    return results.passed(text, **figures)


def at_cap(job, cap, next_larger=True):
    """The planned batch at a cap must train as planned; the next larger micro-batch must not fit there."""

    def do(bench):
        card_bytes = whole_gpu_bytes(bench)
        if cap is not None and cap * 1e9 > card_bytes:
            return results.skipped(f"the GPU has {gigabytes(card_bytes)}")
        name = f"{job.preset}-{cap or 'whole'}-{'-'.join(str(value) for value in job.overrides.values())}"
        run, ended, nvml = job.run(bench, name, {"memory.limit_gb": cap} if cap else {}, expected=(0, 3))
        if ended.code == 3 and run.plan() is None:
            return results.skipped(f"does not fit: {ended.reason()}")
        if ended.code == 3:
            return results.failed(f"planned, and then: {ended.reason()}", "src/planner/limit.cpp, and what the guard says in events.jsonl")
        plan, lines = run.plan(), run.lines()
        found = compare(plan, lines, nvml, has_times=not bench.is_virtual)
        found["context_bytes"] = context_bytes(lines[-1], card_bytes)
        bad = found.pop("bad")
        if next_larger:
            held, seen = next_larger_fails(bench, job, name, plan, card_bytes)
            found["next_larger"] = seen
            if not held:
                bad.append("the next larger micro-batch fits too, or was refused where it fits (src/planner/option_search.cpp)")
        text = describe(found)
        if bench.is_virtual:
            return results.dry(f"{text}; {'; '.join(bad) or 'as planned'}, on a gpu that is as it was planned for", **found)
        return results.failed(text, "; ".join(bad), **found) if bad else results.passed(text, **found)

    return do


def choices_of(plan):
    """What one plan chose, for another run."""
    recompute = plan["recompute"]
    kept = recompute["language_attention_kept"]
    return {"training.micro_batch_size": plan["micro_batch_size"],
            "memory.recompute": f"{recompute['vision_blocks']}+{recompute['language_blocks']}" + (f"/{kept}" if kept else ""),
            "memory.vision_tiles_per_pass": plan["vision_tiles_per_pass"], "memory.loss_chunk_rows": plan["loss_chunk_rows"]}


def seconds_of(lines):
    """A step's; what decoding images takes is no part of a plan."""
    return statistics.median(line["step_seconds"] - line["data_wait_seconds"] for line in lines[WARM_UP:])


def compare(plan, lines, nvml, has_times):
    memory, measured = plan["memory"], plan["measured"]
    found = {"micro_batch": plan["micro_batch_size"], "accumulation": plan["gradient_accumulation_steps"],
             "recompute": f"{plan['recompute']['vision_blocks']}+{plan['recompute']['language_blocks']}",
             "allocation_retries": measured["allocation_retries"], "oom_splits": sum(line["oom_splits"] for line in lines),
             "foreseen_splits": sum(line["foreseen_splits"] for line in lines),
             "predicted_seconds": plan["step_seconds"],
             "nvml_process_bytes": nvml, "bad": []}
    for kind in ("allocated", "reserved"):
        planned, seen = memory[f"{kind}_peak_bytes"], measured[f"{kind}_peak_bytes"]
        found[f"{kind}_planned_bytes"], found[f"{kind}_measured_bytes"] = planned, seen
        if abs(seen / planned - 1) > PEAK_TOLERANCE:
            found["bad"].append(f"the {kind} peak is {100 * (seen / planned - 1):+.1f} % of the plan's: what the stand-ins do not model "
                                "(src/vgpu; compare two runs' memory step by step)")
    if found["allocation_retries"] or found["oom_splits"] or found["foreseen_splits"]:
        found["bad"].append("the planned batch did not run undisturbed (src/planner/limit.cpp: context and margin)")
    if not has_times:
        return found
    seconds = seconds_of(lines)
    ratio = seconds / plan["step_seconds"]
    found.update(measured_seconds=seconds, measured_to_predicted_time=ratio,
                 data_wait_seconds=statistics.median(line["data_wait_seconds"] for line in lines[WARM_UP:]))
    if not 1 / TIME_FACTOR <= ratio <= TIME_FACTOR:
        found["bad"].append("predicted times are off (the efficiencies in src/planner/cost_recorder.cpp)")
    return found


def describe(found):
    text = f"{found['micro_batch']} x {found['accumulation']}, {found['recompute']} blocks recomputed"
    for kind in ("allocated", "reserved"):
        planned, seen = found[f"{kind}_planned_bytes"], found[f"{kind}_measured_bytes"]
        text += f"; {kind} {gigabytes(seen)}, {100 * (seen / planned - 1):+.2f} % of the plan"
    text += f"; {found['allocation_retries']} retries, {found['oom_splits']} + {found['foreseen_splits']} splits"
    if "measured_seconds" in found:
        text += f"; {found['measured_seconds']:.3f} s a step, {found['measured_to_predicted_time']:.2f} of the predicted"
    text += (f"; context {gigabytes(found['context_bytes'])}, NVML {gigabytes(found['nvml_process_bytes'])}")
    return text + (f"; next larger micro-batch {found['next_larger']}" if "next_larger" in found else "")


def next_larger_fails(bench, job, name, plan, card_bytes):
    """Runs the next larger micro-batch with the plan's other choices under an allocator that is capped as the plan was. The
    program does not know of that cap: it must retry, cut or fail. → (whether it did, what was seen)"""
    micro, accumulation = plan["micro_batch_size"], plan["gradient_accumulation_steps"]
    batch = micro * accumulation
    larger = next((size for size in range(micro + 1, batch + 1) if batch % size == 0), None)
    if larger is None:
        return True, "is there none"
    reach = plan["card_bytes"] - plan["memory"]["context_bytes"]
    choices = {**choices_of(plan), "training.micro_batch_size": larger, "memory.mode": "aggressive", "memory.twin": False, "training.max_steps": 3}
    capped = {"VLMTRAIN_RESERVED_LIMIT_BYTES": str(reach)}
    run, ended, _ = job.run(bench, name + "-larger", choices, environment=capped, expected=(0, 3, 5))
    if ended.code == 3 and run.plan() is None:
        # It takes at most that many times as much.
        most = larger / micro * plan["memory"]["reserved_peak_bytes"] + plan["memory"]["context_bytes"]
        return most > 0.98 * card_bytes, f"{larger}: not tried, the planner refuses it ({ended.reason()})"
    if ended.code != 0:
        return True, f"{larger}: exit code {ended.code}, {ended.reason()}"
    retries, splits = run.plan()["measured"]["allocation_retries"], sum(line["oom_splits"] for line in run.lines())
    seen = f"{larger}: {retries} retries, {splits} splits"
    # One that fits into the margin, which the plan keeps free, is none that the plan missed.
    limit = plan["limit_bytes"]
    if not (retries or splits) and run.plan()["measured"]["reserved_peak_bytes"] + plan["memory"]["context_bytes"] > limit:
        return True, seen + ", inside the margin"
    return bool(retries or splits), seen


def whole_gpu_bytes(bench):
    """As a plan without a cap has it."""
    if not hasattr(bench, "card_bytes"):
        job = Job("smolvlm-tiny", {"training.max_steps": 1}, images=1, words=20, global_batch=2)
        bench.card_bytes = job.run(bench, "whole-gpu", {})[0].plan()["card_bytes"]
    return bench.card_bytes


def only_on_gpus(do):
    return lambda bench: results.skipped("a CPU's memory is another matter") if bench.is_cpu else do(bench)


def full_checks(bench):
    job = Job("smolvlm-256m")
    checks = [Check("CUDA context", 20, only_on_gpus(context))]
    return checks + [Check(f"smolvlm-256m, full, {f'{cap} GB' if cap else 'whole gpu'}", 30, only_on_gpus(at_cap(job, cap)))
                     for cap in (None, 12, 24, 40, 8, 16, 60)]


def lora_checks(bench):
    lora = Job("smolvlm-500m", {"lora.rank": 16, "model.quantization": "nf4"})
    fp16 = Job("smolvlm-256m", {"training.precision": "fp16", "training.optimizer_states": "8bit"})
    fixed = Job("smolvlm-256m", {"memory.expandable_segments": False})
    return [Check("smolvlm-500m, LoRA on NF4, 8 GB", 40, only_on_gpus(at_cap(lora, 8))),
            Check("smolvlm-500m, LoRA on NF4, 24 GB", 40, only_on_gpus(at_cap(lora, 24))),
            Check("smolvlm-256m, fp16, 8-bit states, 16 GB", 30, only_on_gpus(at_cap(fp16, 16))),
            Check("smolvlm-256m, fixed segments, 16 GB", 30, only_on_gpus(at_cap(fixed, 16, next_larger=False)))]


def checks(bench):
    return full_checks(bench) + lora_checks(bench)
