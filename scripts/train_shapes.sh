#!/usr/bin/env bash
# Draws a small data set of shapes, trains a small, randomly initialized vision-language model on it, and shows its answers
# before and after. Used by scripts/quickstart.sh and the wheel's `python -m vlmtrain.quickstart`.
#
#   scripts/train_shapes.sh VLMTRAIN PYTHON CONFIG [SEED [KEY=VALUE…]]
#
# All created files are in quickstart/ in the working folder (recreated by each run). PYTHON needs Pillow and NumPy;
# KEY=VALUE changes a key of CONFIG, which is configs/quickstart.yaml.
set -euo pipefail
scripts=$(dirname "$(realpath "$0")")
vlmtrain=$1
python=$2
config=$3
seed=${4:-1}
changes=("training.seed=$seed" "${@:5}")

started=$SECONDS
stage() { printf '\n== %s (%d:%02d)\n' "$1" $(((SECONDS - started) / 60)) $(((SECONDS - started) % 60)); }

stage "Data: images of shapes with questions"
rm -rf quickstart
"$python" "$scripts/make_shapes.py" --out quickstart/data --seed "$seed"

stage "A random model and its answers"
"$vlmtrain" init --preset smolvlm-tiny --out quickstart/model --seed "$seed"
evaluate() {  # checkpoint, name
  "$vlmtrain" eval --config "$config" --checkpoint "$1" --answers "quickstart/answers_$2.jsonl" |
    tee "quickstart/accuracy_$2.txt"
}
evaluate quickstart/model before

stage "Training"
"$vlmtrain" --config "$config" "${changes[@]}"
trained=$(find quickstart/run/checkpoints -maxdepth 1 -name 'step-*' | sort -V | tail -n 1)

stage "Answers to questions about held-out images after training"
evaluate "$trained" after
"$python" "$scripts/draw_answers.py" quickstart

stage "Done"
pictures=(quickstart/data/images/held_out_*)
before=$(awk '$1 == "all" { print $3 }' quickstart/accuracy_before.txt)
after=$(awk '$1 == "all" { print $3 }' quickstart/accuracy_after.txt)
cat <<SUMMARY
Correct held-out answers: $before before, $after after training.
  image of some answers     quickstart/answers.png
  report of the run         quickstart/run/report.html
  metrics of each step      quickstart/run/metrics.jsonl
  checkpoint                $trained (transformers loads it)
Try it: $vlmtrain generate --checkpoint $trained --image ${pictures[0]} --prompt "Describe the shapes."
SUMMARY
