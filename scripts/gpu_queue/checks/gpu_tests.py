"""The tests of tests/gpu: gradients tensor by tensor, kernels and quantization, on the GPU against the CPU."""

import re

from harness import inputs
from harness import results
from harness.check import Check


def find_parts(output):
    """Returns (name, state, message) of each test that ran."""
    parts, message = [], []
    for line in output.splitlines():
        ended = re.match(r"\[ +(OK|FAILED|SKIPPED) +\] (\S+?)(?:,.*)? \(\d+ ms\)$", line)
        if ended:
            parts.append((ended.group(2), ended.group(1), " ".join(message)[:400]))
            message = []
        elif line.startswith("[ RUN"):
            message = []
        else:
            message.append(line.strip())
    return parts


def suite(name):
    def do(bench):
        if bench.gpu_tests is None:
            return results.skipped("gpu_tests: does not exist; build it, or pass its path with --gpu-tests")
        if bench.is_virtual:
            return results.dry()
        environment = {"VLMTRAIN_SOURCE_DIR": str(inputs.ROOT), "VLMTRAIN_GPU_TESTS_DEVICE": bench.device}
        if bench.fault:
            environment["VLMTRAIN_GPU_TESTS_FAULT"] = "1"
        ended = bench.run_program([bench.gpu_tests, f"--gtest_filter={name}.*:*/{name}.*", "--gtest_color=no"], environment)
        tests = find_parts(ended.out)
        bad = [f"{test}: {message}" for test, state, message in tests if state == "FAILED"]
        if bad or ended.code != 0:
            return results.failed("; ".join(bad)[:1500] or f"exit code {ended.code}: {ended.reason()}", f"tests/gpu, suite {name}")
        left_out = [f"{test} ({message})" for test, state, message in tests if state == "SKIPPED"]
        count = len(tests) - len(left_out)
        if count == 0:
            return results.skipped("; ".join(left_out)[:400] or f"gpu_tests has no suite {name}")
        return results.passed(f"{count} tests" + (f"; skipped: {'; '.join(left_out)}"[:400] if left_out else ""), tests=count)

    return do


def checks(bench):
    names = ["GpuTrainingStep", "GpuGeneration", "GpuGradients", "GpuAttention", "GpuQuantization", "GpuOptimizer", "GpuDropout",
             "GpuKernels", "GpuKernelSizes"]
    return [Check(f"tests/gpu: {name}", 15, suite(name), {"a planted difference": {"planted": 1}}) for name in names]

