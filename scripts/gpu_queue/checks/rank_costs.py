"""The cost of a second GPU: NCCL's memory and the collectives' time against their predictions, and each rank's peak."""

import re
import statistics

from harness import inputs
from harness import results
from harness.check import Check
from checks.rank_values import LAUNCH
from checks.plan_accuracy import PEAK_TOLERANCE, compare
from checks.planned_job import GLOBAL_BATCH, WARM_UP, Job, context_bytes, gigabytes

SECONDS = 120
UNITS = {"B": 1, "KiB": 2 ** 10, "MiB": 2 ** 20, "GiB": 2 ** 30}
MEMORY = "NCCL's memory outside PyTorch's allocator: kNcclBytesPerChannelAndPeer in src/planner/model/target.cpp"
COUNTED = "StepSums in src/planner/search/plan_evaluator.cpp against the buckets that src/engine reduces"


def make_job(bench, ranks):
    """Returns the same work for each rank."""
    if bench.is_cpu:
        return Job("smolvlm-tiny", {"training.precision": "fp32"}, images=1, words=20, global_batch=4 * ranks)
    return Job("smolvlm-256m", global_batch=GLOBAL_BATCH * ranks)


def start_run(bench, ranks):
    """Runs the job once for all checks."""
    if not hasattr(bench, "cost_runs"):
        bench.cost_runs = {}
    if ranks not in bench.cost_runs:
        folder = bench.work / "rank-costs" / str(ranks)
        inputs.clear(folder)
        settings, words = make_job(bench, ranks).settings(bench), LAUNCH if ranks > 1 else ()
        with bench.at_most(SECONDS, f"the run of {ranks} (NCCL_DEBUG=INFO logs what NCCL does; {folder})"):
            bench.cost_runs[ranks] = bench.train(folder, bench.device, settings, words, bench.environment("ranks"))
        inputs.clear(folder / "run" / "checkpoints")
    return bench.cost_runs[ranks]


def log_of_rank_1(run):
    """Returns rank 1's peak reserved bytes, and the bytes and number of sums per step, as logged; None for missing values."""
    text = (run.folder / "rank-1.log").read_text()
    reserved = re.search(r"([\d.]+) GB reserved", text)
    sums = re.search(r"ranks reduced ([\d.]+) (\w+) in ([\d.]+) all-reduces per step", text)
    return (float(reserved[1]) * 1e9 if reserved else None,
            float(sums[1]) * UNITS[sums[2]] if sums else None, float(sums[3]) if sums else None)


def memory(bench):
    if bench.is_cpu:
        return results.skipped("a CPU's memory is another matter")
    one, two = start_run(bench, 1), start_run(bench, 2)
    plan, planned = two.plan(), two.plan()["memory"]["reserved_peak_bytes"]
    # One GPU has only its context outside PyTorch's allocator; the rest is NCCL's.
    next_to = [context_bytes(run.lines()[-1], run.plan()["gpu_bytes"]) for run in (one, two)]
    nccl, estimate = next_to[1] - next_to[0], plan["memory"]["communication_bytes"]
    reserved = [plan["measured"]["reserved_peak_bytes"], log_of_rank_1(two)[0]]
    bad = compare(plan, two.lines(), has_times=False)["bad"]
    text = (f"NCCL {gigabytes(nccl)} of rank 0's GPU next to a context of {gigabytes(next_to[0])}: {nccl / estimate:.2f} of the estimate, "
            f"{gigabytes(estimate)} ({MEMORY}); planned peak {gigabytes(planned)}")
    figures = {"nccl_bytes": nccl, "nccl_estimated_bytes": estimate, "context_bytes": next_to[0], "reserved_planned_bytes": planned,
               "reserved_measured_bytes": reserved}
    for rank, reserved_by_step in enumerate(reserved):
        if reserved_by_step is None:
            bad.append(f"rank {rank} does not log its reserved memory")
            continue
        text += f"; rank {rank} reserved {gigabytes(reserved_by_step)}, {100 * (reserved_by_step / planned - 1):+.1f} %"
        if rank > 0 and abs(reserved_by_step / planned - 1) > PEAK_TOLERANCE:
            bad.append(f"the peak of rank {rank} differs from the planned one")
    if bad:
        return results.failed("; ".join([*bad, text]), "src/planner, as in truth-1; rank-1.log has rank 1's", **figures)
    return results.dry(f"{text}; on a GPU as the plan describes it", **figures) if bench.is_virtual else results.measured(text, **figures)


def step_seconds(run):
    return statistics.median(line["step_seconds"] - line["data_wait_seconds"] for line in run.lines()[WARM_UP:])


def waits_a_step(run):
    """Returns the waiting seconds per step of each rank."""
    first, last = run.lines()[WARM_UP - 1], run.lines()[-1]
    steps = last["step"] - first["step"]
    return [(b - a) / steps for a, b in zip(first.get("rank_wait_seconds", []), last.get("rank_wait_seconds", []))]


def times(bench):
    one, two = start_run(bench, 1), start_run(bench, 2)
    waits, (_, summed, calls) = waits_a_step(two), log_of_rank_1(two)
    figures, bad = {"rank_wait_seconds_a_step": waits, "summed_bytes_a_step": summed, "sums_a_step": calls}, []
    if len(waits) != 2:
        bad.append("metrics.jsonl has no rank_wait_seconds of two ranks")
    text = f"{summed / 1e6:.1f} MB added up in {calls:.1f} sums a step" if summed else "rank-1.log has no line about sums"
    if not bench.is_virtual:
        alone, both = step_seconds(one), step_seconds(two)
        figures.update(one_step_seconds=alone, two_step_seconds=both, throughput=2 * alone / both)
        text = (f"{both:.4f} s a step for twice the samples, {alone:.4f} s alone: {2 * alone / both:.2f} times the samples a second; {text}; "
                f"ranks waited {' and '.join(f'{1e3 * wait:.2f} ms' for wait in waits)} a step")
    # A CPU has no plan of this kind.
    if planned := (two.plan() or {}).get("communication"):
        figures["predicted"] = {name: planned[name] for name in ("seconds", "exposed_seconds", "bytes_per_step", "calls_per_step")}
        figures["predicted_step_seconds"] = [run.plan()["step_seconds"] for run in (one, two)]
        text += (f"; predicted {1e3 * planned['seconds']:.2f} ms of sums, {1e3 * planned['exposed_seconds']:.2f} ms not hidden, over "
                 f"{planned['links']}; steps of {figures['predicted_step_seconds'][1]:.4f} s, {figures['predicted_step_seconds'][0]:.4f} s alone")
        # The log rounds to a tenth.
        if summed and (abs(summed / planned["bytes_per_step"] - 1) > 0.05 or abs(calls - planned["calls_per_step"]) > 0.2):
            bad.append(f"{planned['bytes_per_step'] / 1e6:.1f} MB in {planned['calls_per_step']} sums were planned")
    if bad or not summed:
        return results.failed("; ".join([*bad, text]), COUNTED, **figures)
    return results.dry(text + "; no times on a virtual GPU", **figures) if bench.is_virtual else results.measured(text, **figures)


def checks():
    return [Check("memory: NCCL's, and each rank's peak", 60, memory), Check("time: two against one", 60, times)]
