"""One of two ranks is killed, stopped or terminated; two ranks share one GPU."""

import signal

from harness import gpus
from harness import inputs
from harness import results
from harness.check import Check
from checks.rank_costs import make_job
from checks.rank_processes import Ranks
from checks.rank_values import with_mixed_data

WATCH = "src/distributed/rank_monitor.cpp and exit_with_failure() in src/train/run/rank_group.cpp; the ranks' logs are in {}"
# The limits of docs/how-to/several-gpus.md, and some seconds for the driver to release the GPU.
SECONDS_TO_START, SECONDS_TO_END, SECONDS_TO_SAVE = 60, 30, 60
STEPS_BEFORE = 4


def endless(bench, name, settings=None):
    """Returns the folder of a run that does not end by itself."""
    folder = bench.work / "rank-faults" / name
    inputs.clear(folder)
    folder.mkdir(parents=True)
    own = {"training.max_steps": 1000000, "output.save_steps": 0, "output.save_total_limit": 2, "output.dir": folder / "run"}
    bench.write_config(folder / "train.yaml", {**(settings or bench.settings("smolvlm-tiny", with_mixed_data(bench, {}))), **own})
    return folder


def outcome(bench, bad, text, fix, **figures):
    if bad:
        return results.failed("; ".join([*bad, text] if text else bad), fix, **figures)
    return results.dry(f"{text}; on a virtual GPU", **figures) if bench.is_virtual else results.passed(text, **figures)


def described(ended, rank):
    if ended is None:
        return f"rank {rank} kept running"
    return f"rank {rank} ended after {ended.seconds:.1f} s with exit code {ended.code}: {ended.reason()}"


def lost(name, what, words, has_long_steps=False):
    """Returns a check: rank 1 receives the signal `what`; rank 0 must end and print `words` about it. In a long step the signal most
    likely arrives during a pass, while the other GPU waits in an NCCL kernel; in a short step between two calls."""

    def do(bench):
        if has_long_steps and bench.is_cpu:
            return results.skipped("no GPU that could wait in a kernel")
        folder = endless(bench, name, make_job(bench, 2).settings(bench) if has_long_steps else None)
        fix = WATCH.format(folder)
        with Ranks(bench, folder, "first") as ranks:
            if not ranks.make_steps(STEPS_BEFORE, SECONDS_TO_START):
                return results.failed(f"no signal was sent, because the ranks completed no step: {described(ranks.find_end(0, 10), 0)}", fix)
            ranks.send(1, bench.fault.get("signal", what))
            # Rank 0 may first save some GB of the larger model.
            seconds = bench.fault.get("seconds", SECONDS_TO_SAVE if has_long_steps else SECONDS_TO_END)
            ended = ranks.find_end(0, seconds)
            number = ranks.processes[1].pid
        bad = []
        if ended is None:
            bad.append(f"not within {seconds} s")
        else:
            if ended.code != 5:
                bad.append("the exit code must be 5")
            bad += [f"its log lacks '{expected}'" for expected in (f"rank 1: process {number}", words) if expected not in ended.err]
        return outcome(bench, bad, described(ended, 0), fix, code=ended and ended.code, seconds=ended and ended.seconds)

    return do


def newest_checkpoint(folder):
    return max((int(path.name.removeprefix("step-")) for path in folder.glob("run/checkpoints/step-*")), default=None)


def stop_and_resume(bench):
    """Sends TERM to rank 1, runs the same command again, and sends TERM to rank 0."""
    folder = endless(bench, "asked")
    fix = f"is_stop_requested() in src/train/loop/training_loop.cpp, any_rank_stops() in src/train/run/rank_group.cpp; the ranks' logs are in {folder}"
    bad, texts = [], []
    for name, rank in (("first", 1), ("second", 0)):
        with Ranks(bench, folder, name) as ranks:
            if not ranks.make_steps(STEPS_BEFORE, SECONDS_TO_START):
                return results.failed(f"the ranks of the {name} start completed no step: {described(ranks.find_end(0, 10), 0)}", fix)
            ranks.send(rank, bench.fault.get("signal", signal.SIGTERM))
            ended = ranks.ends(SECONDS_TO_SAVE)
            lines = ranks.lines()
        codes = [each and each.code for each in ended]
        checkpoint = newest_checkpoint(folder)
        texts.append(f"TERM to rank {rank}: exit codes {codes[0]} and {codes[1]}, {len(lines)} steps, checkpoint {checkpoint}")
        if codes != [75, 75]:
            bad += ["both exit codes must be 75", *(described(each, number) for number, each in enumerate(ended))]
        if not bench.is_virtual and (not lines or checkpoint != lines[-1]["step"]):
            bad.append("the last step has no checkpoint")
        if not bench.is_virtual and (lines[:len(ranks.started)] != ranks.started or [line["step"] for line in lines] != list(range(1, len(lines) + 1))):
            bad.append(f"it did not resume from step {len(ranks.started)}: it started over or skipped steps")
        if bad:
            break
        if bench.fault.get("without a checkpoint"):
            inputs.clear(folder / "run" / "checkpoints")
    return outcome(bench, bad, "; ".join(texts), fix)


def shared_gpu(bench):
    """Checks that two ranks on one GPU are rejected; NCCL would hang or fail with its own message."""
    if not bench.device.startswith("cuda"):
        return results.skipped("no real GPUs")
    folder = endless(bench, "shared")
    with Ranks(bench, folder, "first", 2 * [{"CUDA_VISIBLE_DEVICES": gpus.visible_gpus()[0]}]) as ranks:
        ended = ranks.ends(SECONDS_TO_SAVE)
    bad = []
    if [each and each.code for each in ended] != [2, 2]:
        bad.append("both exit codes must be 2")
    if not (ended[0] and "have the same GPU" in ended[0].err):
        bad.append("rank 0 does not report that ranks have the same GPU")
    return outcome(bench, bad, "; ".join(described(each, rank) for rank, each in enumerate(ended)),
                   f"check_gpu_not_shared() in src/train/run/rank_group.cpp, get_pci_bus_id() in src/memory/device.cpp; the ranks' logs are in {folder}")


def checks():
    return [Check("rank 1 is killed", 40, lost("killed", signal.SIGKILL, " disconnected: it was killed"),
                  {"asked to stop instead": {"signal": signal.SIGTERM}, "no time to end": {"seconds": 0.1}}),
            Check("rank 1 is killed in a long step", 60, lost("killed-in-step", signal.SIGKILL, " disconnected: it was killed", has_long_steps=True)),
            Check("rank 1 is stopped", 50, lost("stopped", signal.SIGSTOP, "has not responded for"),
                  {"killed instead": {"signal": signal.SIGKILL}}),
            Check("TERM to one, and the same command again", 40, stop_and_resume,
                  {"killed instead": {"signal": signal.SIGKILL}, "no checkpoint to go on from": {"without a checkpoint": True}}),
            Check("two ranks on one GPU are refused", 20, shared_gpu)]
