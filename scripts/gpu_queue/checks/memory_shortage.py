"""A run whose later steps exceed the memory: the look-ahead splits them in advance, the guard after memory runs out."""

import json
import sys

from checks.filled_gpu import Filler, FillDuringRun, has_torch
from checks.planned_job import gigabytes
from harness import inputs
from harness import results
from harness.bench import RunFailed
from harness.check import Check
from harness.comparison import FP32_LATER_LOSS, losses_apart

LARGE_STEPS = 3
# Fraction of the memory that a whole step takes beyond one sample: about half of the samples fit.
SHARE_THAT_FITS = 0.6
AGGRESSIVE_SHARE = 0.98
# Free bytes that the other process leaves: for kernels that only large steps load, and the driver's rounding.
LOADED_LATER_BYTES = 300 * 2 ** 20
STEPS_BEFORE_FILLING = 5
DRIVER_WITHOUT_MEMORY = {"VLMTRAIN_VGPU_FAIL": "launch@gather_kernel:10"}
TAKEN_IN_A_DRY_RUN = 2 ** 26
GUARD = "src/train/step/oom_guard.cpp, memory::detect_out_of_memory; events.jsonl of the runs in {}"
LOOK_AHEAD = "src/train/step/look_ahead_client.cpp, src/planner/dry_run/look_ahead.cpp; events.jsonl of the runs in {}"


class Work:
    """A job with some steps of short texts, then steps with an image per sample; small on a virtual GPU."""

    def __init__(self, bench):
        self.preset = "smolvlm-tiny" if bench.is_virtual else "smolvlm-256m"
        self.batch, self.images = (32, 2) if bench.is_virtual else (4, 1)
        self.words = {"small": 50, "large": 200} if bench.is_virtual else {"small": 400, "large": 400}
        # A small step takes longer than its look-ahead (0.1 s), and all small steps together longer than filling the GPU.
        self.small_steps = 8 if bench.is_virtual else 40
        self.folder = bench.work / "memory-shortage"

    @property
    def steps(self):
        return self.small_steps + LARGE_STEPS

    def write_data(self):
        data = self.folder / "data"
        if not (data / "train.json").exists():
            data.mkdir(parents=True, exist_ok=True)
            names = [f"noise-{number}.png" for number in range(self.images)]
            for number, name in enumerate(names):
                inputs.write_noise(data / name, 1024, 768, number)
            records = []
            for number in range(2 * self.batch):
                for task, used in (("small", []), ("large", names)):
                    records.append({"id": f"{task}-{number}", "task": task, "image": used, "conversations": [
                        {"from": "human", "value": "<image>\n" * len(used) + "What is shown?"},
                        {"from": "gpt", "value": inputs.text(number, self.words[task])}]})
            (data / "train.json").write_text(json.dumps(records))
        return data / "train.json"

    def settings(self, bench):
        shares = f"[{{step: 0, shares: {{small: 1, large: 0}}}}, {{step: {self.small_steps}, shares: {{small: 0, large: 1}}}}]"
        return {"model.path": bench.checkpoint(self.preset), "data.train": self.write_data(), "data.task_shares": shares,
                "training.precision": "fp32", "training.global_batch_size": self.batch, "training.micro_batch_size": self.batch,
                "training.max_steps": self.steps, "training.learning_rate": "1.0e-5", "training.lr_scheduler": "constant",
                "training.warmup_ratio": 0, "memory.recompute": "none", "memory.mode": "aggressive", "output.save_steps": 0,
                "output.save_total_limit": 1, "output.sample_predictions": 0, "output.report": False, "output.tensorboard": False}

    def run(self, bench, name, overrides=None, environment=None, watch=None):
        folder = self.folder / name
        inputs.clear(folder)
        settings = {**self.settings(bench), **(overrides or {})}
        ended, run = bench.try_train(folder, bench.device, settings, environment=environment, watch=watch)
        if ended.code != 0:
            raise RunFailed(name, ended)
        inputs.clear(run.folder / "checkpoints")
        return run


class Needs:
    """The undisturbed run, and a memory limit below its large steps. Measured once for all checks."""

    def __init__(self, bench, work):
        self.undisturbed = work.run(bench, "undisturbed")
        single = work.run(bench, "single-samples", {"training.micro_batch_size": 1, "training.max_steps": 1})
        self.plan = self.undisturbed.plan()
        self.whole = self.plan["memory"]["reserved_peak_bytes"]
        self.single = single.plan()["memory"]["reserved_peak_bytes"]
        self.limit = int(self.single + SHARE_THAT_FITS * (self.whole - self.single))

    def text(self):
        return f"a large step reserves {gigabytes(self.whole)}, a sample of it {gigabytes(self.single)}, limit {gigabytes(self.limit)}"


def find_needs(bench, work):
    if not hasattr(bench, "needs"):
        bench.needs = Needs(bench, work)
    return bench.needs


def describe_outcome(bench, work, run, forecast, fix, text="", **figures):
    """Checks a run. `forecast`: the large steps must be split in advance; otherwise at least one must run out of memory."""
    needs, lines, measured = find_needs(bench, work), run.lines(), run.plan()["measured"]
    small, large = lines[:work.small_steps], lines[work.small_steps:]
    splits = {kind: [sum(line[kind] for line in part) for part in (small, large)] for kind in ("forecast_splits", "oom_splits")}
    figures = {"limit_bytes": needs.limit, "whole_step_bytes": needs.whole, "single_sample_bytes": needs.single, **splits,
               "allocation_retries": measured["allocation_retries"], "micro_batches": [line["micro_batches"] for line in large],
               "reserved_peak_bytes": max(line["reserved_peak_bytes"] for line in lines), "look_ahead": measured.get("look_ahead"),
               "step_seconds": [line["step_seconds"] for line in large], **figures}
    bad = []
    if len(lines) != work.steps or any(line["samples"] != work.batch for line in lines):
        bad.append(f"{len(lines)} of {work.steps} steps, or samples are missing")
    if forecast and (splits["oom_splits"] != [0, 0] or measured["allocation_retries"] or not splits["forecast_splits"][1]):
        bad.append("the look-ahead did not split the large steps before memory ran out")
    if not forecast and not sum(splits["oom_splits"]):
        bad.append("memory did not run out")
    parts = [needs.text(), *([text] if text else []),
             f"{sum(splits['forecast_splits'])} splits before and {sum(splits['oom_splits'])} after memory ran out, "
             f"{measured['allocation_retries']} retries, micro-batches of the large steps {figures['micro_batches']}"]
    if look_ahead_state := measured.get("look_ahead"):
        parts.append(f"{look_ahead_state['forecast_steps']} steps foreseen, {look_ahead_state['late_steps']} late, worst error {100 * look_ahead_state['worst_error']:.2f} %")
    if not bench.is_virtual:
        apart = max(losses_apart(run, needs.undisturbed))
        figures["losses"] = {"measured": apart, "at_most": FP32_LATER_LOSS}
        parts.append(f"losses {apart:.1e} from the undisturbed run's (at most {FP32_LATER_LOSS:.1e})")
        if not apart <= FP32_LATER_LOSS:
            bad.append("the losses changed")
    text = "; ".join(parts + bad)
    if bad:
        return results.failed(text, fix.format(work.folder), **figures)
    return results.dry(text, **figures) if bench.is_virtual else results.passed(text, **figures)


def look_ahead(bench):
    """Checks that large steps are split in advance below a limit that is configured."""
    work = Work(bench)
    needs = find_needs(bench, work)
    limit_gb = (needs.limit + needs.plan["memory"]["context_bytes"]) / AGGRESSIVE_SHARE / 1e9
    run = work.run(bench, "look-ahead", {"memory.limit_gb": f"{limit_gb:.6f}", "memory.allow_splits": True})
    return describe_outcome(bench, work, run, True, LOOK_AHEAD)


def guard(bench):
    """Checks that the guard repeats a step in smaller micro-batches below an allocator limit that is not configured."""
    work = Work(bench)
    needs = find_needs(bench, work)
    run = work.run(bench, "guard", {"memory.look_ahead": False}, {"VLMTRAIN_RESERVED_LIMIT_BYTES": str(needs.limit)})
    return describe_outcome(bench, work, run, False, GUARD)


def filled_by_another(forecast):
    """Returns a check: another process fills the GPU during the small steps. `forecast`: with the look-ahead; else only the guard.

    A virtual GPU has one process. There one launch fails for lack of memory, and the other process fills host memory.
    """

    def do(bench):
        work = Work(bench)
        needs = find_needs(bench, work)
        name = f"filled-{'foreseen' if forecast else 'guard'}"

        def request(reserved):
            if bench.is_virtual:
                return "take", TAKEN_IN_A_DRY_RUN
            return "leave", max(0, needs.limit - reserved) + LOADED_LATER_BYTES

        with Filler("cpu" if bench.is_virtual else bench.device) as filler:
            watchers = []

            def watch(_):
                folder = bench.run_folder(work.folder / name / "run", bench.device)
                watchers.append(FillDuringRun(filler, folder, STEPS_BEFORE_FILLING, request))
                return watchers[-1]

            run = work.run(bench, name, {"memory.look_ahead": forecast}, DRIVER_WITHOUT_MEMORY if bench.is_virtual else None, watch)
        filled = watchers[0]
        if filled.failure or not filled.filled_bytes:
            return results.failed(f"the other process took no memory: {filled.failure}", "scripts/gpu_queue/harness/gpu_filler.py")
        if not bench.is_virtual and filled.done_after > work.small_steps - STEPS_BEFORE_FILLING:
            return results.failed(f"the GPU was filled too late, after {filled.done_after} of {work.small_steps} small steps",
                                  "small_steps in scripts/gpu_queue/checks/memory_shortage.py")
        free = min(line["device_free_bytes"] for line in run.lines())
        text = (f"another process took {gigabytes(filled.filled_bytes)} by step {filled.done_after}, at least {gigabytes(free)} free at a "
                "step's end")
        return describe_outcome(bench, work, run, forecast, LOOK_AHEAD if forecast else GUARD, text, taken_bytes=filled.filled_bytes)

    return do


def needs_torch(do):
    return do if has_torch() else lambda bench: results.skipped(f"{sys.executable} has no torch for the process that fills the GPU")


def checks(bench):
    if bench.is_cpu:
        return []
    filled = [Check("another process fills the GPU: the guard", 25, needs_torch(filled_by_another(False)))]
    if not bench.is_virtual:
        filled.append(Check("another process fills the GPU: the look-ahead", 25, needs_torch(filled_by_another(True))))
    return [Check("the look-ahead splits a later step before memory runs out", 45, look_ahead),
            Check("the guard does a step again after memory ran out", 20, guard), *filled]
