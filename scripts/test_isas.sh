#!/usr/bin/env bash
# Runs the tests that compute (ctest -L numeric) as processors with other instruction sets would: results are held to what
# the arithmetic allows, and the kernels of ATen, oneDNN and MKL differ with the set. After scripts/test.sh, which builds them.
#
#   scripts/test_isas.sh [avx512 avx2 plain]
#
# A set that this processor lacks is skipped, and says so.
set -euo pipefail
cd "$(dirname "$0")/.."
export OMP_WAIT_POLICY=passive

# ATen's, oneDNN's and MKL's names of each.
declare -A aten=([avx512]=avx512 [avx2]=avx2 [plain]=default)
declare -A onednn=([avx512]=AVX512_CORE [avx2]=AVX2 [plain]=SSE41)
declare -A mkl=([avx512]=AVX512 [avx2]=AVX2 [plain]=SSE4_2)
declare -A flag=([avx512]=avx512f [avx2]=avx2 [plain]=sse4_1)

sets=("$@")
((${#sets[@]})) || sets=(avx512 avx2 plain)
for set in "${sets[@]}"; do
  [[ -v aten[$set] ]] || { echo "test_isas: unknown instruction set $set; there are avx512, avx2 and plain" >&2; exit 2; }
done
failed=()
for set in "${sets[@]}"; do
  if ! grep -qw "${flag[$set]}" /proc/cpuinfo; then
    echo "== $set: skipped, this processor does not have it"
    continue
  fi
  echo "== $set: ATEN_CPU_CAPABILITY=${aten[$set]} ONEDNN_MAX_CPU_ISA=${onednn[$set]} MKL_ENABLE_INSTRUCTIONS=${mkl[$set]}"
  ATEN_CPU_CAPABILITY=${aten[$set]} ONEDNN_MAX_CPU_ISA=${onednn[$set]} MKL_ENABLE_INSTRUCTIONS=${mkl[$set]} \
    ctest --preset release --label-regex numeric --parallel "$(nproc)" || failed+=("$set")
done
((${#failed[@]} == 0)) || { echo "test_isas: failed under ${failed[*]}" >&2; exit 1; }
