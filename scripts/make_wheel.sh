#!/usr/bin/env bash
# Builds a wheel for machines without root access: `pip install vlmtrain-….whl` installs the program, the stub libraries of the
# virtual GPU, and LibTorch as its dependency torch.
#
#   scripts/make_wheel.sh [FOLDER]     default: dist
#
# The program is that of scripts/make_portable.sh; packaging/build_wheel.py packs it. scripts/test_wheel.sh tests the wheel.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/make_portable.sh --program-alone build/wheel
/usr/bin/python3 packaging/build_wheel.py --program build/wheel --out "${1:-dist}"
