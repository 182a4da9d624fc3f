#!/usr/bin/env bash
# From a bare Debian 12 to a trained model: installs what is needed, builds vlmtrain, draws a small data set of shapes,
# trains a small vision-language model on it from a random start, and shows its answers before and after.
#
#   scripts/quickstart.sh [seed]
#
# Everything it makes lies in quickstart/ (removed and made anew by each run) and build/release/.
set -euo pipefail
cd "$(dirname "$0")/.."

printf '\n== Set-up: Debian packages and LibTorch\n'
scripts/setup.sh

printf '\n== Build\n'
cmake --preset release >/dev/null
cmake --build --preset release --target vlmtrain

scripts/train_shapes.sh build/release/vlmtrain /usr/bin/python3 configs/quickstart.yaml "${1:-1}"
