#!/usr/bin/env python3
"""Measures the accuracy of plans on this machine's GPU, for one preset at several memory limits.

For each limit, trains the planned batch on the worst sample, which must neither retry an allocation nor run out of memory. Then
trains the next larger micro-batch with the same limit on PyTorch's allocator, which must do one of both. Prints a Markdown table.
The entry plan-accuracy of scripts/gpu_queue.sh does the same with fixed choices. `--device virtual:h100` tests the script without
a GPU.

    python3 scripts/gpu_plan_accuracy.py --vlmtrain build/release/vlmtrain --preset smolvlm-256m
"""

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "gpu_queue"))

from checks import plan_accuracy  # noqa: E402
from harness import program  # noqa: E402
from harness.bench import Bench, RunFailed  # noqa: E402

HOURS = 24 * 3600


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vlmtrain", type=Path, required=True)
    parser.add_argument("--preset", default="smolvlm-256m")
    parser.add_argument("--tokenizer", type=Path, help="tokenizer.json of the preset's model; not needed for SmolVLM's presets")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--caps", default="8,12,16,24,40,48,80", help="memory limits in GB (10⁹ bytes)")
    parser.add_argument("--images", type=int, default=2)
    parser.add_argument("--words", type=int, default=200)
    parser.add_argument("--global-batch", type=int, default=16)
    parser.add_argument("--overrides", nargs="*", default=[], help="further key=value, such as lora.rank=16")
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory() as name:
        bench = Bench(arguments.vlmtrain.absolute(), arguments.device, Path(name))
        bench.clock = program.Clock(HOURS)
        bench.tokenizer = arguments.tokenizer
        overrides = dict(override.split("=", 1) for override in arguments.overrides)
        job = plan_accuracy.Job(arguments.preset, overrides, arguments.images, arguments.words, arguments.global_batch)
        print(f"{arguments.preset}, {arguments.images} images, steps of {arguments.global_batch}\n\n| cap GB | state | what was seen |\n|---|---|---|")
        failed = False
        for cap in arguments.caps.split(","):
            try:
                outcome = plan_accuracy.at_cap(job, float(cap))(bench)
            except RunFailed as error:
                sys.exit(f"gpu_truth: {cap} GB: {error}")
            failed = failed or outcome.state == "FAILED"
            print(f"| {cap} | {outcome.state} | {outcome.text}{'. To fix: ' + outcome.fix if outcome.fix else ''} |", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
