#!/usr/bin/env bash
# What takes too long for every change and is run once a night: the debug build, in which each file stands by itself (missing
# includes), the unit tests under AddressSanitizer and UndefinedBehaviorSanitizer, clang-tidy on every file, the fuzz targets.
#
#   scripts/nightly.sh                        all of it; hours on two cores
#   scripts/nightly.sh debug asan tidy fuzz   or some of it
#
# Goes on after a part that fails. Each part's output is in build/nightly; at the end a line for each. Exit 1 where one failed.
# VLMTRAIN_FUZZ_SECONDS (600): how long each fuzz target runs.
set -euo pipefail
cd "$(dirname "$0")/.."

run_debug() {
  # Without debugging information, which nobody looks at and which doubles the time.
  cmake --preset debug -B build/nightly/debug -DCMAKE_CXX_FLAGS_DEBUG=-O0
  cmake --build build/nightly/debug -- -k 0
}

run_asan() {
  cmake --preset asan
  cmake --build --preset asan
  # These ask malloc for what a sanitizer refuses. A process's leaks are LibTorch's; the virtual GPU is preloaded.
  export GTEST_FILTER='-ShortageTest.KnowsWhatTheHostThrows:HostMallocTest.*'
  export ASAN_OPTIONS=detect_leaks=0:detect_odr_violation=0:allocator_may_return_null=1:verify_asan_link_order=0
  export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
  OMP_WAIT_POLICY=passive ctest --preset asan --parallel "$(nproc)"
}

run_tidy() { scripts/lint.sh --tidy; }

run_fuzz() { scripts/fuzz.sh --seconds "${VLMTRAIN_FUZZ_SECONDS:-600}" --jobs "$(nproc)"; }

parts=("$@")
((${#parts[@]})) || parts=(debug asan tidy fuzz)
for part in "${parts[@]}"; do
  [[ $(type -t "run_$part") == function ]] || { echo "nightly: there is no part $part; there are debug, asan, tidy and fuzz" >&2; exit 2; }
done

mkdir -p build/nightly
scripts/setup.sh --nightly
failed=0
for part in "${parts[@]}"; do
  start=$SECONDS
  # In a process of its own, where set -e holds, as it does not in a function behind ||.
  if bash -euo pipefail -c "$(declare -f "run_$part"); run_$part" >"build/nightly/$part.log" 2>&1; then
    result=passed
  else
    result="FAILED (build/nightly/$part.log)"
    failed=1
  fi
  echo "nightly: $part $result, $(((SECONDS - start) / 60)) min"
done
exit $failed
