#!/usr/bin/env python3
"""Tests scripts/compare_builds.py by comparing a build with itself: no case differs, and a changed value is reported, also if renamed.

    python3 tests/compare_builds_test.py VLMTRAIN
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "compare_builds.py"
COUNTED = "copy from pinned memory"
CASES = ("train/smolvlm-bf16", "card/h100-smolvlm-bf16")


def compare(old, new, out, cases=CASES, renames=None):
    only = "|".join(f"^{name}$" for name in cases)
    options = ["--renames", renames] if renames else []
    ended = subprocess.run([sys.executable, SCRIPT, old, new, "--out", out, "--only", only, *options], capture_output=True, text=True)
    return ended.returncode, ended.stdout + ended.stderr


def demand(holds, what):
    if not holds:
        sys.exit(f"compare_builds_test: {what}")


def change(path, place, value):
    """Sets the value at a path of keys."""
    outcome = json.loads(path.read_text())
    inner = outcome
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    path.write_text(json.dumps(outcome))


def main():
    vlmtrain = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as name:
        out = Path(name)
        code, output = compare(vlmtrain, vlmtrain, out)
        demand(code == 0 and "2 of 2 cases equal, 0 not" in output, f"a build differs from itself, exit code {code}:\n{output}")
        gpu = json.loads((out / "old" / "card-h100-smolvlm-bf16.json").read_text())
        demand(gpu["launches"]["launches"] > 1000 and gpu["launches"]["counts"][COUNTED] > 0, "the virtual GPU's trace has no launches")
        demand(gpu["metrics"][-1]["predicted_peak_bytes"] == gpu["metrics"][-1]["reserved_peak_bytes"], "the run had no look-ahead")

        old = out / "old" / "train-smolvlm-bf16.json"
        trained = json.loads(old.read_text())
        demand(len(trained["metrics"]) == 4 and trained["metrics"][0]["loss"] > 0, "the run has no losses")
        weights = trained["weights"]["last"]["model.safetensors"]
        tensor = sorted(weights)[0]
        change(old, ["weights", "last", "model.safetensors", tensor], [*weights[tensor][:2], "another digest"])
        change(old, ["metrics", 2, "loss"], trained["metrics"][2]["loss"] * (1 + 2 ** -50))
        change(out / "old" / "card-h100-smolvlm-bf16.json", ["launches", "counts", COUNTED], 0)
        code, output = compare(out / "old", vlmtrain, out)
        demand(code == 1 and "0 of 2 cases equal, 2 not" in output, f"changes are not reported, exit code {code}:\n{output}")
        for place in ("metrics[2].loss", f"weights.last.model.safetensors.{tensor}", f"launches.counts.{COUNTED}"):
            demand(place in output, f"{place} is not reported:\n{output}")

    check_renames(vlmtrain)


def check_renames(vlmtrain):
    """Checks that an outcome with old names equals the new one under a rename table, and that changed values are still reported."""
    name, rate = CASES[1], "earlier_rate"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        table = out / "renames.tsv"
        table.write_text("")
        compare(vlmtrain, vlmtrain, out, [name], table)
        path = out / "old" / "card-h100-smolvlm-bf16.json"
        outcome = json.loads(path.read_text())
        for step in outcome["metrics"]:
            step[rate] = step.pop("learning_rate")
        outcome["config"] = outcome["config"].replace("  global_batch_size:", "  earlier_size:")
        counts = outcome["launches"]["counts"]
        kernels = [key for key in counts if " adamw_kernel " in key]
        demand(kernels, "no custom kernel of AdamW is in the trace")
        for key in kernels:
            counts[key.replace(" adamw_kernel ", " earlier_kernel ")] = counts.pop(key)

        lines = [f"field\t{rate}\tlearning_rate", "config\ttraining.earlier_size\ttraining.global_batch_size", "kernel\tearlier_kernel\tadamw_kernel"]
        path.write_text(json.dumps(outcome))
        table.write_text("\n".join(lines) + "\n")
        code, output = compare(out / "old", vlmtrain, out, [name], table)
        demand(code == 0, f"renamed fields, keys and kernels are not equal, exit code {code}:\n{output}")

        # A reworded text is equal if its numbers are.
        outcome["plan"]["gpu"] = outcome["plan"]["card"] = "an earlier text" + outcome["plan"]["gpu"].replace("NVIDIA", "")
        path.write_text(json.dumps(outcome))
        code, output = compare(out / "old", vlmtrain, out, [name], table)
        demand(code == 0, f"a reworded text is a difference, exit code {code}:\n{output}")
        outcome["plan"]["gpu"] += " 7"

        counts[kernels[0].replace(" adamw_kernel ", " earlier_kernel ")] += 1
        outcome["metrics"][1][rate] *= 1 + 2 ** -50
        path.write_text(json.dumps(outcome))
        code, output = compare(out / "old", vlmtrain, out, [name], table)
        for place in ("metrics[1].learning_rate", f"launches.counts.{kernels[0]}", "plan.gpu has the numbers"):
            demand(code == 1 and place in output, f"{place} is not reported, exit code {code}:\n{output}")
        table.write_text("\n".join([*lines, "field\tstep\tlearning_rate"]) + "\n")
        code, output = compare(out / "old", vlmtrain, out, [name], table)
        demand(code == 2 and "occurs in an earlier line" in output, f"two names for one were accepted, exit code {code}:\n{output}")


if __name__ == "__main__":
    main()
