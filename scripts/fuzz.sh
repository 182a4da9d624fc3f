#!/usr/bin/env bash
# Runs the fuzz targets of tests/fuzz, each on its corpus, and prints the number of executions and the findings.
# Intended for nightly runs:
#
#   scripts/fuzz.sh                       each target for ten minutes
#   scripts/fuzz.sh --jobs 2              two of them in parallel
#   scripts/fuzz.sh --seconds 60 json     one target for a minute
#
# Needs clang with libFuzzer (Debian: clang, libclang-rt-14-dev). New corpus entries go to VLMTRAIN_FUZZ_CACHE
# (default: build/fuzz/corpus), which the next run continues; failing inputs are kept in build/fuzz/findings.
# Exit code 1 if there is a finding.
set -euo pipefail
cd "$(dirname "$0")/.."

export seconds=600
jobs=1
while [[ ${1:-} == --* ]]; do
  case $1 in
    --seconds) seconds=$2 ;;
    --jobs) jobs=$2 ;;
    *) echo "$0: unknown option $1" >&2; exit 2 ;;
  esac
  shift 2
done
targets=("$@")
if ((${#targets[@]} == 0)); then
  for file in tests/fuzz/*_fuzz.cpp; do
    name=${file##*/}
    targets+=("${name%_fuzz.cpp}")
  done
fi
export cache=${VLMTRAIN_FUZZ_CACHE:-build/fuzz/corpus}
export findings=build/fuzz/findings

# Prints the row of a target; status 1 if there is a finding.
fuzz() {
  local target=$1 seeds=() status=0 finding=none
  local log=$findings/$target.log
  mkdir -p "$cache/$target"
  [[ -d tests/fuzz/corpus/$target ]] && seeds=("tests/fuzz/corpus/$target")
  ASAN_OPTIONS=allocator_may_return_null=0:detect_leaks=1 nice -n 15 "build/fuzz/${target}_fuzz" \
    -max_total_time="$seconds" -timeout=25 -rss_limit_mb=3000 -malloc_limit_mb=2000 -max_len=65536 -print_final_stats=1 \
    -artifact_prefix="$findings/$target-" "$cache/$target" "${seeds[@]}" >"$log" 2>&1 || status=$?
  if ((status != 0)); then
    finding=$(grep -m1 -E 'SUMMARY|ERROR: libFuzzer|runtime error' "$log" || echo "exit $status")
  fi
  local executions coverage
  executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  coverage=$(grep -o 'cov: [0-9]*' "$log" | tail -1 | cut -d' ' -f2 || true)
  echo "| $target | $seconds | ${executions:-?} | ${coverage:-?} | $finding |"
  ((status == 0))
}
export -f fuzz

cmake --preset fuzz >/dev/null
cmake --build build/fuzz --target "${targets[@]/%/_fuzz}"
mkdir -p "$findings"
echo "| target | seconds | executions | coverage | finding |"
echo "|---|---|---|---|---|"
printf '%s\n' "${targets[@]}" | xargs -P "$jobs" -I{} bash -c 'fuzz {}' || exit 1
