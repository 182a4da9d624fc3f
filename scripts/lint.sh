#!/usr/bin/env bash
# Checks the style: clang-format on every C++ file, clang-tidy on the given source files or on those that differ from a commit.
#
#   scripts/lint.sh                     clang-format only
#   scripts/lint.sh --tidy              and clang-tidy on every source file (ten minutes on two cores)
#   scripts/lint.sh --tidy-files FILE…  and clang-tidy on these
#   scripts/lint.sh --tidy-since COMMIT and clang-tidy on the source files changed since COMMIT
#   scripts/lint.sh --tidy-changed      since this branch left the remote's main one; on that itself, since the commit before
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

# Prints the translation units that contain the given source files: batches of the release build (cmake/Parts.cmake), which parse
# LibTorch's headers once for many files, and the files outside of batches.
find_units() {
  local source
  for source in "$@"; do
    grep -lxE "#include \"(src/)?${source#src/}\"" build/release/together/*.cpp || echo "$source"
  done | sort -u
}

case ${1:-} in
  --tidy) mapfile -t sources < <(git ls-files 'src/*.cpp') ;;
  --tidy-files) sources=("${@:2}") ;;
  --tidy-since) mapfile -t sources < <(git diff --name-only --diff-filter=d "$2" -- 'src/*.cpp') ;;
  --tidy-changed) mapfile -t sources < <(git diff --name-only --diff-filter=d "$(branching_point)" -- 'src/*.cpp') ;;
  *) exit 0 ;;
esac
if ((${#sources[@]} > 0)); then
  cmake --preset release >/dev/null
  # The compilation database has options of GCC.
  find_units "${sources[@]}" | xargs -P "$(nproc)" -n 1 clang-tidy --quiet -p build/release --extra-arg=-Wno-unused-command-line-argument
fi
echo "clang-tidy: ${#sources[@]} files are in order"
