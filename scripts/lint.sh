#!/usr/bin/env bash
# Checks the style: clang-format on every C++ file, clang-tidy on those given, or on those that differ from a commit.
#
#   scripts/lint.sh                     clang-format only
#   scripts/lint.sh --tidy              and clang-tidy on every source file (long)
#   scripts/lint.sh --tidy-since COMMIT and clang-tidy on the source files changed since COMMIT
set -euo pipefail
cd "$(dirname "$0")/.."
mapfile -t files < <(git ls-files '*.h' '*.cpp')
clang-format --dry-run --Werror "${files[@]}"
echo "clang-format: ${#files[@]} files are in order"

case ${1:-} in
  --tidy) mapfile -t sources < <(git ls-files 'src/*.cpp') ;;
  --tidy-since) mapfile -t sources < <(git diff --name-only --diff-filter=d "$2" -- 'src/*.cpp') ;;
  *) exit 0 ;;
esac
cmake --preset debug >/dev/null  # where each file is compiled by itself
((${#sources[@]} == 0)) || printf '%s\n' "${sources[@]}" | xargs -P "$(nproc)" -n 4 clang-tidy --quiet -p build/debug
echo "clang-tidy: ${#sources[@]} files are in order"
