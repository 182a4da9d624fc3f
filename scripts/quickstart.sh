#!/usr/bin/env bash
# From a bare Debian 12 to a trained model: installs the dependencies, builds vlmtrain, draws a small data set of shapes,
# trains a small, randomly initialized vision-language model on it, and shows its answers before and after.
#
#   scripts/quickstart.sh [seed]
#
# All created files are in quickstart/ (recreated by each run) and build/release/.
set -euo pipefail
cd "$(dirname "$0")/.."

printf '\n== Set-up: Debian packages and LibTorch\n'
scripts/setup.sh

printf '\n== Build\n'
cmake --preset release >/dev/null
cmake --build --preset release --target vlmtrain

scripts/train_shapes.sh build/release/vlmtrain /usr/bin/python3 configs/quickstart.yaml "${1:-1}"
