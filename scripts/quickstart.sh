#!/usr/bin/env bash
# From a bare Debian 12 to a trained model: installs what is needed, builds vlmtrain, draws a small data set of shapes,
# trains a small vision-language model on it from a random start, and shows its answers before and after.
#
#   scripts/quickstart.sh [seed]
#
# Everything it makes lies in quickstart/ (removed and made anew by each run) and build/release/.
set -euo pipefail
cd "$(dirname "$0")/.."
seed=${1:-1}

started=$SECONDS
stage() { printf '\n== %s (%d:%02d)\n' "$1" $(((SECONDS - started) / 60)) $(((SECONDS - started) % 60)); }

stage "Set-up: Debian packages and LibTorch"
scripts/setup.sh

stage "Build"
cmake --preset release >/dev/null
cmake --build --preset release --target vlmtrain
vlmtrain=build/release/vlmtrain

stage "Data: pictures of shapes with questions"
rm -rf quickstart
/usr/bin/python3 scripts/make_shapes.py --out quickstart/data --seed "$seed"

stage "A random model, and what it answers"
$vlmtrain init --preset smolvlm-tiny --out quickstart/model --seed "$seed"
evaluate() {  # checkpoint, name
  $vlmtrain eval --config configs/quickstart.yaml --checkpoint "$1" --answers "quickstart/answers_$2.jsonl" |
    tee "quickstart/accuracy_$2.txt"
}
evaluate quickstart/model before

stage "Training"
$vlmtrain --config configs/quickstart.yaml "training.seed=$seed"
trained=$(find quickstart/run/checkpoints -maxdepth 1 -name 'step-*' | sort -V | tail -n 1)

stage "What it answers now, to questions about pictures that it has not seen"
evaluate "$trained" after
/usr/bin/python3 scripts/draw_answers.py quickstart

stage "Done"
picture=$(find quickstart/data/images -name 'held_out_*' | sort | head -n 1)
before=$(awk '$1 == "all" { print $3 }' quickstart/accuracy_before.txt)
after=$(awk '$1 == "all" { print $3 }' quickstart/accuracy_after.txt)
cat <<SUMMARY
Held-out answers that are right: $before before, $after after training.
  picture of some answers   quickstart/answers.png
  how the run went          quickstart/run/report.html
  metrics of each step      quickstart/run/metrics.jsonl
  checkpoint                $trained (transformers loads it)
Ask it: $vlmtrain generate --checkpoint $trained --image $picture --prompt "Describe the shapes."
SUMMARY
