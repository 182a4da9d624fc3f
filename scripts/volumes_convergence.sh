#!/usr/bin/env bash
# Trains the volumes' example once per split of its global batch of 16, and prints a Markdown table of the runs.
#
#   scripts/volumes_convergence.sh [VLMTRAIN [SEED [KEY=VALUE…]]]
#
# Reads the data and the random model that scripts/train_volumes.sh wrote to volumes/ in the working folder, and writes
# volumes/convergence/. Completed runs are not repeated. MICRO_BATCHES="16 1" runs only these.
set -euo pipefail
root=$(dirname "$(dirname "$(realpath "$0")")")
vlmtrain=$(realpath "${1:-$root/build/release/vlmtrain}")
seed=${2:-1}
config=$root/configs/volumes.yaml
micro_batches=${MICRO_BATCHES:-16 8 4 2 1}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-2}

for micro in $micro_batches; do
  run=volumes/convergence/micro_$micro
  [[ -e $run.json ]] && continue
  printf '\n== micro-batches of %s\n' "$micro"
  "$vlmtrain" --config "$config" "training.seed=$seed" "${@:3}" "training.micro_batch_size=$micro" "output.dir=$run"
  "$vlmtrain" eval --config "$config" --checkpoint "$run" --json "${@:3}" >"$run.json.part"
  mv "$run.json.part" "$run.json"
done

printf '\n'
# shellcheck disable=SC2086
/usr/bin/python3 - $micro_batches <<'TABLE'
import json
import sys
from pathlib import Path

LAST = 20  # number of steps whose losses are averaged; a step has only 16 samples


def losses_of(micro):
    lines = Path(f"volumes/convergence/micro_{micro}/metrics.jsonl").read_text().splitlines()
    return [line["loss"] for line in map(json.loads, lines) if "loss" in line]


print(f"| micro-batch | passes a step | loss of step 1 | furthest from the first row's in steps 1 to 10 | in all steps "
      f"| mean loss of the last {LAST} steps | held-out loss | right answers | T1 | T2 | T3 |")
print("|---" * 11 + "|")
reference = losses_of(sys.argv[1])
for micro in sys.argv[1:]:
    losses = losses_of(micro)
    apart = [abs(own - other) for own, other in zip(losses, reference)]
    scores = json.loads(Path(f"volumes/convergence/micro_{micro}.json").read_text())
    tasks = " | ".join(f"{scores['by_task'][task]['exact_match']:.1%}" for task in ("T1", "T2", "T3"))
    last = losses[-LAST:]
    print(f"| {micro} | {16 // int(micro)} | {losses[0]:.6f} | {max(apart[:10]):.1e} | {max(apart):.1e} "
          f"| {sum(last) / len(last):.4f} | {scores['loss']:.4f} | {scores['exact_match']:.1%} | {tasks} |")
TABLE
