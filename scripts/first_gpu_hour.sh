#!/usr/bin/env bash
# What can only be checked on a real GPU, in half an hour: docs/first-gpu-hour.md
#
#   scripts/first_gpu_hour.sh list             the parts, with their budgets
#   scripts/first_gpu_hour.sh all              all of them; what is done already is not done again
#   scripts/first_gpu_hour.sh correctness-1    one part
#   scripts/first_gpu_hour.sh self-test        shows, on the CPU, that the checks of values can fail
#
# --help names the options. Needs Python 3.9 and the program; LibTorch is found by the program itself, by --libtorch DIR, by
# VLMTRAIN_LIBTORCH=DIR, or as Python's own torch.
set -euo pipefail
exec "${PYTHON:-python3}" -B "$(dirname "$(readlink -f "$0")")/first_gpu_hour" "$@"
