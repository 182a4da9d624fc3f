"""Runs that are killed or terminated, and resumed; checkpoints that are written while training continues."""

import signal

from checks import large_checkpoints
from checks.interrupted_runs import digests, interrupt, resume
from harness import comparison
from harness import results
from harness import tensors
from harness.check import Check
from harness.comparison import FP32_LATER_LOSS, FP32_WEIGHTS, Verdict

PRESET = "smolvlm-tiny"
STEPS, SAVE_STEPS, STEPS_BEFORE = 20, 5, 12
SMALL = {"training.max_steps": STEPS, "output.save_steps": SAVE_STEPS, "training.learning_rate": "1.0e-4"}
# Maximum difference of an interrupted run, as a multiple of the difference of two uninterrupted runs.
REPEAT_FACTOR = 4
RESUME = "src/train/checkpoint/resume.cpp and src/train/checkpoint/run_checkpoint.cpp; on a GPU, values that the saved state lacks; the runs are in {}"
SAVER = "src/train/loop/run_saver.cpp: the copies from the device and their order; the runs are in {}"
CHANGED = {"a learning rate 1 % higher after it": {"training.resume": "changed", "training.learning_rate": "1.01e-4"},
           "without the checkpoint": {"without": "checkpoint"}}


def has_same_bits(run, whole, step):
    """Returns whether losses and all files of weights and optimizer states are bit-identical."""
    losses = [[line["loss"] for line in each.lines()] for each in (run, whole)]
    return losses[0] == losses[1] and digests(run, step) == digests(whole, step)


def check_same(bench, verdict, run, whole, repeated):
    """Adds the difference of an fp32 run from an uninterrupted one to a verdict. On the CPU the bits must be equal."""
    figures = [(FP32_LATER_LOSS, f"worst of {STEPS} losses", lambda one: max(comparison.losses_apart(one, whole))),
               (FP32_WEIGHTS, f"weights after {STEPS} steps", lambda one: comparison.weights_apart(one, whole, STEPS, first=SAVE_STEPS))]
    for bound, name, apart in figures:
        between_repeats = apart(repeated)
        verdict.figures[f"{name}, of two runs without interruption"] = between_repeats
        verdict.at_most(0 if bench.is_cpu else max(bound, REPEAT_FACTOR * between_repeats), apart(run), name)
    verdict.at_least(STEPS, len(run.lines()), "steps")
    bits = {"run": has_same_bits(run, whole, STEPS), "repetition": has_same_bits(repeated, whole, STEPS)}
    verdict.figures["same_bits"] = bits
    verdict.parts.append(f"bits of losses, weights and moments {'equal' if bits['run'] else 'differ'}, "
                         f"those of a repetition {'equal' if bits['repetition'] else 'differ'}")


def interrupted(what, code):
    """Returns a check: an fp32 run that is stopped by a signal and resumed has the losses and weights of an uninterrupted one."""

    def do(bench):
        whole, repeated = (bench.kept_run(side, bench.device, PRESET, SMALL) for side in ("whole", "repeated"))
        folder = bench.work / "interruptions" / what.name
        settings = bench.settings(PRESET, SMALL)
        sent = bench.fault.get("signal", what)
        ended, state = interrupt(bench, folder, settings, sent, lambda lines, saved, _: len(lines) >= STEPS_BEFORE and saved)
        fix = RESUME.format(folder)
        if ended.code != code:
            return results.failed(f"{sent.name} after {len(state.lines)} of {STEPS} steps: exit code {ended.code} instead of {code}: "
                                  f"{ended.reason()}", fix)
        if not state.saved:
            return results.failed(f"{sent.name} after {len(state.lines)} steps left no checkpoint", fix)
        begin = state.saved[-1]
        run = resume(bench, folder, settings)
        verdict = Verdict()
        check_same(bench, verdict, run, whole, repeated)
        text = f"{what.name} after step {len(state.lines)}, resumed after step {begin}"
        if what == signal.SIGTERM and begin != len(state.lines):
            verdict.bad.append("the last step has no checkpoint")
        if run.lines()[:begin] != state.lines[:begin]:
            verdict.bad.append(f"it did not resume after step {begin}")
        verdict.figures.update(lines=len(state.lines), resumed_after=begin)
        text += "; " + "; ".join([verdict.text(), *verdict.bad])
        return results.failed(text, fix, **verdict.figures) if verdict.bad else results.passed(text, **verdict.figures)

    return do


def saved_alike(bench):
    """Checks that checkpoints written asynchronously have the values of those written synchronously."""
    waits = bench.kept_run("waits", bench.device, PRESET, {**SMALL, "output.async_save": False})
    goes_on = bench.kept_run("goes-on", bench.device, PRESET, {**SMALL, "output.async_save": True, **bench.fault})
    verdict, same_files = Verdict(), []
    for step in range(SAVE_STEPS, STEPS + 1, SAVE_STEPS):
        ours, theirs = digests(goes_on, step), digests(waits, step)
        same_files.append(f"{sum(ours.get(name) == digest for name, digest in theirs.items())} of {len(theirs)}")
        a, b = goes_on.optimizer(step), waits.optimizer(step)
        difference = tensors.same_names(a, b) or ("" if b else "no optimizer states")
        if difference:
            verdict.bad.append(f"step {step}: {difference}")
            continue
        verdict.at_most(0 if bench.is_cpu else FP32_WEIGHTS, tensors.whole_distance(a, b) / tensors.whole_norm(b), f"states of step {step}")
    weights = comparison.weights_apart(goes_on, waits, STEPS, first=SAVE_STEPS)
    verdict.at_most(0 if bench.is_cpu else FP32_WEIGHTS, weights, f"weights after {STEPS} steps")
    copies = [run.plan()["measured"]["checkpoint_copies_bytes"] for run in (waits, goes_on)] if bench.is_cpu else None
    if copies and not copies[0] < copies[1]:
        verdict.bad.append(f"copies of {copies[1]} bytes: the checkpoint was not written from copies")
    text = f"{verdict.text()}; files with the same bits: {', '.join(same_files)}"
    verdict.figures["same_files"] = same_files
    if verdict.bad:
        return results.failed("; ".join([text, *verdict.bad]), SAVER.format(goes_on.folder), **verdict.figures)
    return results.passed(text, **verdict.figures)


def checks(bench):
    if bench.is_virtual:
        return []  # a run on a virtual GPU saves nothing
    return [Check("SIGKILL, and the same command again", 20, interrupted(signal.SIGKILL, -signal.SIGKILL), CHANGED),
            Check("SIGTERM, and the same command again", 8, interrupted(signal.SIGTERM, 75),
                  {**CHANGED, "killed instead": {"signal": signal.SIGKILL}}),
            Check("checkpoints written while steps go on have the same values", 10, saved_alike,
                  {"a learning rate 1 % higher": {"training.learning_rate": "1.01e-4"}}),
            *large_checkpoints.checks(bench)]
