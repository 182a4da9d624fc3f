"""Checkpoints of some GB: the time that steps wait for them, and a kill while one is written."""

import signal
import statistics
import threading
import time

from checks.interrupted_runs import checkpoints, digests, interrupt, resume
from checks.planned_job import Job
from harness import comparison
from harness import inputs
from harness import results
from harness.check import Check

STEPS, SAVE_STEPS, WARM_UP = 12, 4, 2
# Bound on the difference of bf16 losses with another order of sums, and the multiple of a repetition's difference that is allowed
# instead: kernels with atomic additions round differently in each run, and steps amplify the difference.
LOSS_TOLERANCE = 5e-3
REPETITION_FACTOR = 4
FIX = "src/train/loop/run_saver.cpp; the runs are in {}"


class StepTimes:
    """Watches a run's metrics.jsonl: the time between steps, and whether a checkpoint is being written."""

    def __init__(self, run_folder):
        self.folder, self.at, self.was_saving, self.ended = run_folder, [], [], threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def watch(self):
        saves = False
        while not self.ended.wait(0.01):
            path = self.folder / "metrics.jsonl"
            count = path.read_bytes().count(b"\n") if path.exists() else 0
            saves = checkpoints(self.folder)[1] or saves
            while len(self.at) < count:
                self.at.append(time.monotonic())
                self.was_saving.append(saves)
                saves = False

    def finish(self):
        self.ended.set()
        self.thread.join()

    def intervals(self):
        """Returns for each step after the first: the seconds since the preceding step, and whether a checkpoint was being written."""
        return [(after - before, saving) for before, after, saving in zip(self.at, self.at[1:], self.was_saving[1:])]


def make_job(bench):
    """Returns the job; on the CPU that of the tiny preset, also in bf16."""
    overrides = {"training.max_steps": STEPS, "output.save_steps": SAVE_STEPS, "output.save_total_limit": 9, "data.num_workers": 2}
    if bench.is_cpu:
        return Job("smolvlm-tiny", overrides, images=1, words=20, global_batch=4)
    return Job("smolvlm-256m", overrides, global_batch=8)


def saved_run(bench, name):
    """Returns a run that saves in the given way, its summary and its step times; runs once for all checks."""
    if not hasattr(bench, "saved_runs"):
        bench.saved_runs = {}
    if name not in bench.saved_runs:
        folder = bench.work / "large-checkpoints" / name
        inputs.clear(folder)
        watchers = []

        def watch(_):
            watchers.append(StepTimes(folder / "run"))
            return watchers[-1]

        settings = {**make_job(bench).settings(bench), "output.async_save": name == "goes-on"}
        run = bench.train(folder, bench.device, settings, environment=bench.environment("reference"), watch=watch)
        bench.saved_runs[name] = run, watchers[0]
    return bench.saved_runs[name]


def measure_size(run, step):
    return sum(path.stat().st_size for path in (run.folder / "checkpoints" / f"step-{step}").rglob("*") if path.is_file())


def measure_times(times):
    """Returns medians of a run's seconds between steps, and the total time lost to checkpoints."""
    intervals = times.intervals()[WARM_UP:]
    calm = [seconds for seconds, saving in intervals if not saving]
    busy = [seconds for seconds, saving in intervals if saving]
    usual = statistics.median(calm) if calm else None
    return {"usual_seconds": usual, "while_saving_seconds": statistics.median(busy) if busy else None, "steps_while_saving": len(busy),
            "longest_seconds": max(seconds for seconds, _ in intervals),
            "lost_seconds": sum(seconds - usual for seconds in busy) if usual else None}


def described(name, problems):
    def seconds(value):
        return "-" if value is None else f"{value:.3f} s"

    return (f"{name}: {seconds(problems['usual_seconds'])} a step, {seconds(problems['while_saving_seconds'])} in "
            f"{problems['steps_while_saving']} steps while a checkpoint was written, the longest {seconds(problems['longest_seconds'])}, "
            f"{seconds(problems['lost_seconds'])} lost in all")


def step_times(bench):
    """Compares step times while checkpoints are written, synchronously and asynchronously."""
    figures, texts, bad = {}, [], []
    for name in ("waits", "goes-on"):
        run, times = saved_run(bench, name)
        figures[name] = {**measure_times(times), "run_seconds": run.seconds}
        texts.append(described(name, figures[name]))
        if len(run.lines()) != STEPS or len(times.at) != STEPS:
            bad.append(f"{name}: {len(run.lines())} of {STEPS} steps, {len(times.at)} of them seen while it ran")
        saved, _ = checkpoints(run.folder)
        if saved != list(range(SAVE_STEPS, STEPS + 1, SAVE_STEPS)):
            bad.append(f"{name}: checkpoints of steps {saved}")
    waits, goes_on = (saved_run(bench, name)[0] for name in ("waits", "goes-on"))
    figures["checkpoint_bytes"] = measure_size(waits, SAVE_STEPS)
    texts.append(f"a checkpoint has {figures['checkpoint_bytes'] / 1e9:.2f} GB")
    if not bad:
        ours, theirs = digests(goes_on, SAVE_STEPS), digests(waits, SAVE_STEPS)
        figures["same_files"] = sum(ours.get(name) == digest for name, digest in theirs.items())
        figures["loss_apart"] = max(comparison.losses_apart(goes_on, waits))
        figures["repetition_apart"] = max(comparison.losses_apart(saved_run(bench, "repetition")[0], waits))
        bound = max(LOSS_TOLERANCE, REPETITION_FACTOR * figures["repetition_apart"])
        texts.append(f"{figures['same_files']} of {len(theirs)} files of step {SAVE_STEPS} have the same bits; "
                     f"losses {figures['loss_apart']:.1e} apart (at most {bound:.1e}; of a repetition {figures['repetition_apart']:.1e})")
        if not figures["loss_apart"] <= bound:
            bad.append("the losses differ")
        inputs.clear(saved_run(bench, "repetition")[0].folder / "checkpoints")
    for run in (waits, goes_on):
        inputs.clear(run.folder / "checkpoints")  # 10 GB each
    text = "; ".join([*texts, *bad])
    return results.failed(text, FIX.format(goes_on.folder), **figures) if bad else results.measured(text, **figures)


def killed_while_saving(bench):
    """Checks that a bf16 run killed while it writes its second checkpoint resumes from a complete one with the same losses."""
    whole, _ = saved_run(bench, "waits")
    folder = bench.work / "large-checkpoints" / "killed"
    settings = {**make_job(bench).settings(bench), "output.async_save": True}

    def is_due(lines, saved, is_saving):
        # A small checkpoint may be written between two polls.
        return bool(saved) and (is_saving and len(lines) >= 2 * SAVE_STEPS or len(lines) > 2 * SAVE_STEPS)

    fix = FIX.format(folder)
    ended, state = interrupt(bench, folder, settings, bench.fault.get("signal", signal.SIGKILL), is_due)
    if ended.code != -signal.SIGKILL or not state.saved:
        return results.failed(f"exit code {ended.code} after {len(state.lines)} steps, checkpoints {state.saved}: {ended.reason()}", fix)
    began = time.monotonic()
    run = resume(bench, folder, settings)
    seconds, begin, lines = time.monotonic() - began, state.saved[-1], run.lines()
    losses = comparison.losses_apart(run, whole)
    same_bits = [line["loss"] for line in lines] == [line["loss"] for line in whole.lines()]
    bad = []
    if lines[:begin] != state.lines[:begin]:
        bad.append(f"it did not resume after step {begin}")
    if len(lines) != STEPS:
        bad.append(f"{len(lines)} of {STEPS} steps")
    bound = 0 if bench.is_cpu else max(LOSS_TOLERANCE, REPETITION_FACTOR * max(comparison.losses_apart(saved_run(bench, "repetition")[0], whole)))
    if not max(losses) <= bound:
        bad.append("the losses differ")
    leftovers = [name for name in (folder / "run" / "checkpoints").iterdir() if not name.name.startswith("step-")]
    if leftovers:
        bad.append(f"{leftovers[0].name} was not removed")
    inputs.clear(folder / "run" / "checkpoints")
    moment = "while" if state.was_saving else "not while"
    text = "; ".join([f"killed after step {len(state.lines)}, {moment} a checkpoint was written; resumed after step {begin}; losses "
                      f"{max(losses):.1e} apart (at most {bound:.1e}), {'equal' if same_bits else 'different'} bits", *bad])
    figures = {"lines": len(state.lines), "was_saving": state.was_saving, "resumed_after": begin, "loss_apart": max(losses),
               "same_bits": same_bits, "seconds_from_start_to_end": seconds}
    return results.failed(text, fix, **figures) if bad else results.passed(text, **figures)


def checks(bench):
    faults = {"a learning rate 1 % higher after it": {"training.resume": "changed", "training.learning_rate": "1.01e-5"},
              "without the checkpoint": {"without": "checkpoint"}, "asked to stop instead": {"signal": signal.SIGTERM}}
    size = "smolvlm-256m" if not bench.is_cpu else "smolvlm-tiny"
    return [Check(f"{size}, bf16: step times while checkpoints are written", 70, step_times),
            Check(f"{size}, bf16: SIGKILL while a checkpoint is written", 35, killed_while_saving, faults)]
