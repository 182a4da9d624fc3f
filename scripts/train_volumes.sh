#!/usr/bin/env bash
# Draws scans of heads as NIfTI files, trains a small, randomly initialized model on questions about one scan, two scans of a
# subject and two subjects, and scores its answers about held-out subjects.
#
#   scripts/train_volumes.sh [VLMTRAIN [SEED [KEY=VALUE…]]]
#
# All created files are in volumes/ in the working folder (recreated by each run). Needs Python 3 with NumPy. Exit code 1 if
# fewer than 90 % of the answers are correct. Uses OMP_NUM_THREADS threads (default: 2).
set -euo pipefail
root=$(dirname "$(dirname "$(realpath "$0")")")
vlmtrain=$(realpath "${1:-$root/build/release/vlmtrain}")
seed=${2:-1}
config=$root/configs/volumes.yaml
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-2}

started=$SECONDS
stage() { printf '\n== %s (%d:%02d)\n' "$1" $(((SECONDS - started) / 60)) $(((SECONDS - started) % 60)); }

stage "Data: scans of heads in two modalities, and questions"
rm -rf volumes
/usr/bin/python3 "$root/scripts/make_brains.py" --out volumes/data --seed "$seed"

stage "A random model"
"$vlmtrain" init --preset brain-llava-tiny --out volumes/model --seed "$seed"

stage "Training"
"$vlmtrain" --config "$config" "training.seed=$seed" "${@:3}"
trained=$(find volumes/run/checkpoints -maxdepth 1 -name 'step-*' | sort -V | tail -n 1)

stage "Answers about held-out subjects"
"$vlmtrain" eval --config "$config" --checkpoint "$trained" --answers volumes/answers.jsonl | tee volumes/accuracy.txt

stage "Done"
share_of() { awk -v name="$1" '$1 == name { print $3 }' volumes/accuracy.txt; }
cat <<SUMMARY
Correct answers about held-out subjects: $(share_of all) (T1 $(share_of T1), T2 $(share_of T2), T3 $(share_of T3))
  answers and references             volumes/answers.jsonl
  report of the run                  volumes/run/report.html
SUMMARY
awk '$1 == "all" { exit !($3 + 0 >= 90) }' volumes/accuracy.txt || { echo "Fewer than 90 % are correct."; exit 1; }
