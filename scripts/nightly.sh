#!/usr/bin/env bash
# Runs the checks that take too long for every change, in parts of at most an hour: sanitizers, clang-tidy, fuzz targets, and more.
# scripts/nightly/__main__.py has the usage: scripts/nightly.sh --help.
set -euo pipefail
cd "$(dirname "$0")/.."
case " $* " in
  *" --list "* | *" --status "* | *" --help "* | *" -h "*) ;;
  *) scripts/setup.sh --nightly ;;
esac
PYTHONPATH=scripts exec python3 -m nightly "$@"
