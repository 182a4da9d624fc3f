#!/usr/bin/env bash
# Builds everything and runs every test that this machine can run.
#
#   scripts/test.sh [ctest arguments, such as -L unit or -R tokenizer]
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh --tests
cmake --preset release >/dev/null
cmake --build --preset release
# Threads of tests that run side by side are not to spin while they wait for each other: that takes ten times as long.
OMP_WAIT_POLICY=passive ctest --preset release --parallel "$(nproc)" "$@"
