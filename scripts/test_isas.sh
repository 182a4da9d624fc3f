#!/usr/bin/env bash
# Runs the numeric tests (ctest -L numeric) under other instruction sets. The kernels of ATen, oneDNN and MKL differ with the
# set; results must stay within the arithmetic's tolerance. Run scripts/test.sh first, which builds the tests.
#
#   scripts/test_isas.sh [avx512 avx2 plain]
#
# A set that this processor lacks is reported and skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
export OMP_WAIT_POLICY=passive

# The names of each set in ATen, oneDNN and MKL.
declare -A aten=([avx512]=avx512 [avx2]=avx2 [plain]=default)
declare -A onednn=([avx512]=AVX512_CORE [avx2]=AVX2 [plain]=SSE41)
declare -A mkl=([avx512]=AVX512 [avx2]=AVX2 [plain]=SSE4_2)
declare -A flag=([avx512]=avx512f [avx2]=avx2 [plain]=sse4_1)

sets=("$@")
((${#sets[@]})) || sets=(avx512 avx2 plain)
for set in "${sets[@]}"; do
  [[ -v aten[$set] ]] || { echo "test_isas: unknown instruction set $set; the sets are avx512, avx2 and plain" >&2; exit 2; }
done
failed=()
for set in "${sets[@]}"; do
  if ! grep -qw "${flag[$set]}" /proc/cpuinfo; then
    echo "== $set: skipped, this processor does not support it"
    continue
  fi
  echo "== $set: ATEN_CPU_CAPABILITY=${aten[$set]} ONEDNN_MAX_CPU_ISA=${onednn[$set]} MKL_ENABLE_INSTRUCTIONS=${mkl[$set]}"
  ATEN_CPU_CAPABILITY=${aten[$set]} ONEDNN_MAX_CPU_ISA=${onednn[$set]} MKL_ENABLE_INSTRUCTIONS=${mkl[$set]} \
    ctest --preset release --label-regex numeric --parallel "$(nproc)" || failed+=("$set")
done
((${#failed[@]} == 0)) || { echo "test_isas: failed under ${failed[*]}" >&2; exit 1; }
