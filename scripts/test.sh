#!/usr/bin/env bash
# Builds everything and runs every test that this machine can run.
#
#   scripts/test.sh [ctest arguments, such as -L unit or -R planner]
#   scripts/test.sh --only FILTER    every test whose name matches, as GoogleTest's --gtest_filter: 'DriverTest.*'
set -euo pipefail
cd "$(dirname "$0")/.."
if [[ ${1:-} == --only && -z ${2:-} ]]; then
  echo "test: --only: has no filter; give one, such as 'DriverTest.*'" >&2
  exit 2
fi
scripts/setup.sh --tests
cmake --preset release >/dev/null
cmake --build --preset release
# Threads of parallel tests must not spin while they wait for each other, which would take ten times as long.
export OMP_WAIT_POLICY=passive
if [[ ${1:-} == --only ]]; then
  found=0
  for program in build/release/tests/*_tests; do
    [[ $program == */virtual_gpu_tests ]] && continue  # these need a GPU's name from ctest: ctest -L virtual-gpu
    [[ $("$program" --gtest_list_tests --gtest_filter="$2") == *$'\n  '* ]] || continue
    found=1
    "$program" --gtest_filter="$2"
  done
  ((found)) || {
    echo "test: --only $2: matches no test; list the names with build/release/tests/NAME_tests --gtest_list_tests" >&2
    exit 2
  }
  exit 0
fi
# One more test than processors at a time, because tests of lost ranks and signals mostly wait.
ctest --preset release --parallel "$(($(nproc) + 1))" "$@"
