#!/usr/bin/env bash
# Draws ultrasound-like images with five structures, trains a small, randomly initialized model to segment the structure that
# a question names, and scores it on held-out images.
#
#   scripts/train_masks.sh [VLMTRAIN [SEED [KEY=VALUE…]]]
#
# All created files are in masks/ in the working folder (recreated by each run). Needs Python 3 with Pillow and NumPy.
# One thread is as fast as two, because images of 128 pixels are small.
set -euo pipefail
root=$(dirname "$(dirname "$(realpath "$0")")")
vlmtrain=$(realpath "${1:-$root/build/release/vlmtrain}")
seed=${2:-1}
config=$root/configs/masks.yaml
export OMP_NUM_THREADS=1

started=$SECONDS
stage() { printf '\n== %s (%d:%02d)\n' "$1" $(((SECONDS - started) / 60)) $(((SECONDS - started) % 60)); }

stage "Data: images with five structures, questions and masks"
rm -rf masks
/usr/bin/python3 "$root/scripts/make_organs.py" --out masks/data --seed "$seed"

stage "A random model"
"$vlmtrain" init --preset prs-med-tiny --out masks/model --seed "$seed"

stage "Training"
"$vlmtrain" --config "$config" "training.seed=$seed" "${@:3}"
trained=$(find masks/run/checkpoints -maxdepth 1 -name 'step-*' | sort -V | tail -n 1)

stage "Predicted masks of held-out images"
"$vlmtrain" eval --config "$config" --checkpoint "$trained" --mask-out masks/held_out

stage "Done"
pictures=(masks/data/images/held_out_*)
cat <<SUMMARY
  predicted and true masks     masks/held_out/*.png
  report of the run            masks/run/report.html
Try it: $vlmtrain generate --checkpoint $trained --image ${pictures[0]} --prompt "Segment the kidney." --mask-out masks/answer
SUMMARY
