"""Compares a step with custom kernels with one of ATen's operations, and with the planned ratio."""

from harness import results
from harness.check import Check
from checks.planned_job import Job, plan_arguments, measure_seconds

# Bound on the relative difference of the first loss in bf16, whose roundings differ.
LOSS_TOLERANCE = 5e-3


def against_aten(title, job):
    def do(bench):
        custom, _, _ = job.run(bench, f"kernels-{title}-custom", {"training.kernels": "custom"})
        aten, _, _ = job.run(bench, f"kernels-{title}-aten", {"training.kernels": "aten", **plan_arguments(custom.plan())})
        forecast = aten.plan()["step_seconds"] / custom.plan()["step_seconds"]
        text = f"{custom.plan()['micro_batch_size']} x {custom.plan()['gradient_accumulation_steps']}; planned {forecast:.2f} times as fast"
        if bench.is_virtual:
            return results.dry(text, planned_ratio=forecast)
        seconds = {"custom": measure_seconds(custom.lines()), "aten": measure_seconds(aten.lines())}
        losses = {"custom": custom.lines()[0]["loss"], "aten": aten.lines()[0]["loss"]}
        ratio, apart = seconds["aten"] / seconds["custom"], abs(losses["custom"] - losses["aten"]) / losses["aten"]
        text = (f"{ratio:.2f} times as fast as ATen's, {seconds['custom']:.3f} s a step ({custom.plan()['step_seconds']:.3f} planned) "
                f"against {seconds['aten']:.3f} ({aten.plan()['step_seconds']:.3f}); {text}; first losses {apart:.1e} apart")
        figures = {"ratio": ratio, "planned_ratio": forecast, "seconds": seconds, "losses": losses,
                   "planned_seconds": {"custom": custom.plan()["step_seconds"], "aten": aten.plan()["step_seconds"]},
                   "reserved_peak_bytes": {name: run.plan()["measured"]["reserved_peak_bytes"] for name, run in (("custom", custom), ("aten", aten))}}
        if apart > LOSS_TOLERANCE:
            return results.failed(text, "src/kernels: gpu_tests --gtest_filter='*GpuKernels*' finds the wrong kernel", **figures)
        if ratio < 1:
            return results.failed(text, "src/kernels: VLMTRAIN_WITHOUT_KERNELS=NAME and build/release/kernel_speed find the slow kernel", **figures)
        return results.passed(text, **figures)

    return do


def checks(bench):
    if bench.is_cpu:
        return []
    lora = {"lora.rank": 16}
    jobs = {"smolvlm-2.2b, LoRA": Job("smolvlm-2.2b", lora), "smolvlm-2.2b, LoRA on NF4": Job("smolvlm-2.2b", {**lora, "model.quantization": "nf4"}),
            "smolvlm-500m, full, 8-bit states": Job("smolvlm-500m", {"training.optimizer_states": "8bit"})}
    return [Check(f"{title}: against ATen's operations", 30, against_aten(title, job)) for title, job in jobs.items()]

