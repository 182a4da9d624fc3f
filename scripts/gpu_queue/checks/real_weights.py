"""Trained weights on the GPU: the checks of tests/real_weights, whose text weights are SmolLM2's."""

import json
import sys

from harness import inputs
from harness import results
from harness.check import Check

SCRIPT = inputs.ROOT / "tests" / "real_weights"
MODEL = "smollm2"
TRAINING_STEPS = 30
MISSING_PACKAGE = 77
FIX = "tests/real_weights: run it by hand with --only and --device"
# Checks by the regular expression that selects them, with their seconds on an H200. The first includes creating the checkpoint.
GROUPS = {"token ids and losses in five formats": ("token ids|formats|loss (?!scale)", 60), "greedy answers in five formats": ("answers", 40),
          "fp16's loss scale": ("loss scale", 20), "full training against transformers": ("training full", 40),
          "LoRA against transformers and PEFT": ("training lora", 40)}


def read_lines(text):
    """Returns the JSON objects that a program printed, one per line."""
    lines = [line for line in text.splitlines() if line.startswith("{")]
    return [json.loads(line) for line in lines]


def summarize(lines):
    """Returns one outcome of many lines: failed if one is, else passed if one is compared with a bound."""
    figures = {line["check"]: {"state": line["state"], **line["figures"]} for line in lines}
    failures = [line for line in lines if line["state"] == results.FAILED]
    if failures:
        return results.failed("; ".join(f"{line['check']}: {line['text']}" for line in failures), FIX, **figures)
    text = "; ".join(f"{line['check'].removeprefix(MODEL + ' ')}: {line['text']}" for line in lines)
    if all(line["state"] == results.SKIPPED for line in lines):
        return results.skipped(text)
    state = results.passed if any(line["state"] == results.PASSED for line in lines) else results.measured
    return state(text, **figures)


def group(pattern):
    def do(bench):
        source, packages = bench.find_carried(MODEL), bench.find_carried("python")
        command = [sys.executable, SCRIPT, "--vlmtrain", bench.vlmtrain, "--work", bench.work / "real-weights", "--device", bench.device,
                   "--models", MODEL, "--steps", TRAINING_STEPS, "--only", f"^{MODEL} ({pattern})", "--seconds", int(bench.clock.remaining())]
        ended = bench.run_program(command + (["--source", source] if source else []), {"PYTHONPATH": str(packages)} if packages else {})
        if ended.code == MISSING_PACKAGE:
            return results.skipped(ended.reason())
        lines = read_lines(ended.out)
        if ended.code not in (0, 1) or not lines:
            return results.failed(f"exit code {ended.code}: {ended.reason()}", FIX)
        if bench.is_virtual:
            return results.dry(f"{len(lines)} checks ran the program")
        return summarize(lines)

    return do


def checks(_):
    return [Check(name, seconds, group(pattern)) for name, (pattern, seconds) in GROUPS.items()]
