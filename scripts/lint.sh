#!/usr/bin/env bash
# Checks the style: clang-format on every C++ file, clang-tidy on the given files, or on those that differ from a commit.
#
#   scripts/lint.sh                     clang-format only
#   scripts/lint.sh --tidy              and clang-tidy on every source file (long)
#   scripts/lint.sh --tidy-files FILE…  and clang-tidy on these
#   scripts/lint.sh --tidy-since COMMIT and clang-tidy on the source files changed since COMMIT
#   scripts/lint.sh --tidy-changed      since the branch point from the remote's main branch; on that branch, since the preceding commit.
#                                       Skipped for more than 40 files, which take too long for CI: scripts/nightly.sh tidy checks all
set -euo pipefail
cd "$(dirname "$0")/.."
mapfile -t files < <(git ls-files '*.h' '*.cpp' '*.cu')
clang-format --dry-run --Werror "${files[@]}"
echo "clang-format: ${#files[@]} files are in order"

# The commit that --tidy-changed compares with.
branching_point() {
  local point
  point=$(git merge-base HEAD origin/HEAD 2>/dev/null || git merge-base HEAD origin/main 2>/dev/null || true)
  if [[ -z $point || $point == $(git rev-parse HEAD) ]]; then
    point=$(git rev-parse --quiet --verify HEAD~1 || git rev-parse HEAD)
  fi
  echo "$point"
}

case ${1:-} in
  --tidy) mapfile -t sources < <(git ls-files 'src/*.cpp') ;;
  --tidy-files) sources=("${@:2}") ;;
  --tidy-since) mapfile -t sources < <(git diff --name-only --diff-filter=d "$2" -- 'src/*.cpp') ;;
  --tidy-changed) mapfile -t sources < <(git diff --name-only --diff-filter=d "$(branching_point)" -- 'src/*.cpp') ;;
  *) exit 0 ;;
esac
if [[ $1 == --tidy-changed ]] && ((${#sources[@]} > 40)); then
  echo "clang-tidy: skipped for ${#sources[@]} changed files, at most 40 here; scripts/nightly.sh tidy checks all"
  exit 0
fi
cmake --preset debug >/dev/null  # where each file is compiled by itself
((${#sources[@]} == 0)) || printf '%s\n' "${sources[@]}" | xargs -P "$(nproc)" -n 4 clang-tidy --quiet -p build/debug
echo "clang-tidy: ${#sources[@]} files are in order"
