#!/usr/bin/env bash
# A wheel for machines where nobody is root: `pip install vlmtrain-….whl` brings the program, the stand-ins for the CUDA
# libraries, and LibTorch as the torch wheel that it depends on.
#
#   scripts/make_wheel.sh [FOLDER]     default: dist
#
# The program is that of scripts/make_portable.sh; packaging/build_wheel.py packs it. scripts/test_wheel.sh tests the wheel.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/make_portable.sh --program-alone build/wheel
/usr/bin/python3 packaging/build_wheel.py --program build/wheel --out "${1:-dist}"
