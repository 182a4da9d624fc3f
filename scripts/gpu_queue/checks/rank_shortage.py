"""Memory runs out on rank 1 only: its allocator has a limit that neither the plan nor the look-ahead includes."""

import json

from harness import inputs
from harness import results
from harness.check import Check
from harness.comparison import FP32_LATER_LOSS, finite
from checks.rank_faults import described, outcome
from checks.rank_processes import Ranks
from checks.planned_job import Job, gigabytes

FIX = "src/train/step/oom_guard.cpp, and the ranks' agreement in src/distributed/ranks.cpp; the ranks' logs are in {}"
STEPS, SECONDS = 3, 90
SHARE = 0.75  # fraction of the peak; half of the micro-batch fits, because most of the peak is activations


def run(bench, name, limit):
    """Returns (plan, steps, program.Ended of each rank)."""
    folder = bench.work / "rank-shortage" / name
    inputs.clear(folder)
    folder.mkdir(parents=True)
    job = Job("smolvlm-256m", {"training.precision": "fp32", "training.micro_batch_size": 2, "training.max_steps": STEPS,
                               "memory.recompute": "none", "memory.look_ahead": False}, images=1, global_batch=8)
    bench.write_config(folder / "train.yaml", {**job.settings(bench), "output.dir": folder / "run"})
    capped = {"VLMTRAIN_RESERVED_LIMIT_BYTES": str(limit)} if limit else {}
    with Ranks(bench, folder, "rank", ({}, capped)) as ranks:
        ended, lines, plan = ranks.ends(SECONDS), ranks.lines(), ranks.run / "plan.json"
    inputs.clear(folder / "run" / "checkpoints")
    return json.loads(plan.read_text()) if plan.exists() else None, lines, ended


def losses_apart(a, b):
    pairs = [(x["loss"], y["loss"]) for x, y in zip(a, b)]
    return max((abs(x - y) / abs(y) if finite(x) and finite(y) and y else float("inf") for x, y in pairs), default=float("inf"))


def shortage(bench):
    """Checks that both ranks repeat the step, rank 1 in smaller micro-batches, with the same result."""
    if bench.is_cpu:
        return results.skipped("a CPU's memory is another matter")
    fix = FIX.format(bench.work / "rank-shortage")
    plan, free, ended = run(bench, "free", None)
    if [each and each.code for each in ended] == [3, 3]:
        return results.skipped(f"does not fit without a limit: {ended[0].reason()}")
    if plan is None or [each and each.code for each in ended] != [0, 0]:
        return results.failed("without a limit: " + "; ".join(described(each, rank) for rank, each in enumerate(ended)), fix)
    limit = int(SHARE * plan["measured"]["reserved_peak_bytes"])
    _, capped, ended = run(bench, "capped", limit)
    again = sum(line["oom_splits"] for line in capped)
    text = (f"peak {gigabytes(plan['measured']['reserved_peak_bytes'])}, rank 1 capped at {gigabytes(limit)}: {len(capped)} steps, "
            f"{again} times a step was repeated")
    bad = []
    if [each and each.code for each in ended] != [0, 0]:
        bad += [described(each, rank) for rank, each in enumerate(ended)]
    if len(capped) != STEPS or not again:
        bad.append(f"expected {STEPS} steps, some of them repeated")
    if not bench.is_virtual:
        apart = losses_apart(capped, free)
        text += f"; losses {apart:.1e} apart (at most {FP32_LATER_LOSS:.1e})"
        if not apart <= FP32_LATER_LOSS:
            bad.append("the losses changed")
    return outcome(bench, bad, text, fix, limit_bytes=limit, done_again=again)


def checks():
    return [Check("memory runs out on rank 1 alone", 60, shortage)]
