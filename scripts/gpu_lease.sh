#!/usr/bin/env bash
# scripts/first_gpu_hour.sh in some minutes, on a machine with many cores and one GPU that is lent for a short time: what
# only compares values goes side by side; what measures memory and time comes behind it, alone.
#
#   scripts/gpu_lease.sh PORTABLE OUT [values] [times]     PORTABLE: of scripts/make_portable.sh, and kernel_speed; default: both
#
# OUT gets a folder for each part, with its report.md, and all that was printed.
# VALUES_SECONDS (120): what is side by side is ended then. TRUTH_ONLY: checks of truth by name. WORK: a folder for runs, which
# stays. DEVICE=virtual:h100 tries this script.
set -uo pipefail
cd "$(dirname "$0")/.."
if (($# < 2)); then
  sed -n 's/^# \?//; 2,9p' "$0" >&2
  exit 2
fi
portable=$(realpath "$1")
if [[ ! -x $portable/vlmtrain ]]; then
  echo "gpu_lease: there is no program $portable/vlmtrain: scripts/make_portable.sh makes it" >&2
  exit 2
fi
if ! out=$(mkdir -p "$2" && realpath "$2"); then exit 2; fi
shift 2
stages=("${@:-values}")
(($# > 0)) || stages=(values times)
for stage in "${stages[@]}"; do
  if [[ $stage != values && $stage != times ]]; then
    echo "gpu_lease: $stage is no stage: values, times" >&2
    exit 2
  fi
done
work=${WORK:-$(mktemp -d)}
[[ -n ${WORK:-} ]] || trap 'rm -rf "$work"' EXIT

# part NAME WORDS…: of first_gpu_hour.sh
part() {
  local name=$1
  shift
  timeout --kill-after=5 "$seconds" scripts/first_gpu_hour.sh "$@" --device "${DEVICE:-cuda}" --vlmtrain "$portable/vlmtrain" \
    --out "$out/$name" --work "$work/$name" >"$out/$name.log" 2>&1
  # 124: ended here.
  (($? != 124)) || echo "   out of time  $name: ended after $seconds s" >>"$out/$name.log"
}

at_most() {
  local seconds=$1
  shift
  "$@"
}

values() {
  local seconds=${VALUES_SECONDS:-120}
  # Two threads each: there are more processes than cores else.
  export OMP_NUM_THREADS=2
  local what
  for what in training answers evaluation; do part "fp32-$what" correctness-1 --only "fp32 $what" & done
  for what in smolvlm llava nanovlm qwen2.5 qwen3 internvl3-tiny internvl3.5 gemma; do
    part "variants-$what" correctness-2 --only "$what" &
  done
  part tests correctness-3 &
  wait
  unset OMP_NUM_THREADS
}

times() {
  local libtorch=${VLMTRAIN_LIBTORCH:-$(python3 -c 'import torch; print(torch.__path__[0])')}
  LD_LIBRARY_PATH=$libtorch/lib timeout 60 "$portable/kernel_speed" >"$out/kernel-speed.log" 2>&1
  at_most 100 part kernels kernels
  at_most 100 part truth truth-1 truth-2 --only "${TRUTH_ONLY:-}"
  at_most 80 part speed speed
}

for stage in "${stages[@]}"; do
  started=$SECONDS
  "$stage"
  echo "== $stage: $((SECONDS - started)) s"
done
cat "$out"/*.log | grep -E '^ +(passed|FAILED|measured|skipped|out of time) |^to mend|look at|^first_gpu_hour|wrong:|^\| ' || true
