#!/usr/bin/env python3
"""scripts/compare_builds.py, of a build with itself: nothing differs; where an outcome of one side is changed in one place, that is said.

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


def compare(old, new, out):
    only = "|".join(f"^{name}$" for name in CASES)
    ended = subprocess.run([sys.executable, SCRIPT, old, new, "--out", out, "--only", only], capture_output=True, text=True)
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
        code, said = compare(vlmtrain, vlmtrain, out)
        demand(code == 0 and "2 of 2 cases equal, 0 not" in said, f"a build differs from itself, exit code {code}:\n{said}")
        card = json.loads((out / "old" / "card-h100-smolvlm-bf16.json").read_text())
        demand(card["launches"]["launches"] > 1000 and card["launches"]["counts"][COUNTED] > 0, "the virtual card's trace has no launches")
        demand(card["metrics"][-1]["predicted_peak_bytes"] == card["metrics"][-1]["reserved_peak_bytes"], "the run had no twin")

        old = out / "old" / "train-smolvlm-bf16.json"
        trained = json.loads(old.read_text())
        demand(len(trained["metrics"]) == 4 and trained["metrics"][0]["loss"] > 0, "the run has no losses")
        weights = trained["weights"]["last"]["model.safetensors"]
        tensor = sorted(weights)[0]
        change(old, ["weights", "last", "model.safetensors", tensor], [*weights[tensor][:2], "another digest"])
        change(old, ["metrics", 2, "loss"], trained["metrics"][2]["loss"] * (1 + 2 ** -50))
        change(out / "old" / "card-h100-smolvlm-bf16.json", ["launches", "counts", COUNTED], 0)
        code, said = compare(out / "old", vlmtrain, out)
        demand(code == 1 and "0 of 2 cases equal, 2 not" in said, f"changes are not noticed, exit code {code}:\n{said}")
        for place in ("metrics[2].loss", f"weights.last.model.safetensors.{tensor}", f"launches.counts.{COUNTED}"):
            demand(place in said, f"{place} is not named:\n{said}")


if __name__ == "__main__":
    main()
