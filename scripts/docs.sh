#!/usr/bin/env bash
# Builds the documentation as a site in build/site, with mkdocs-material from PyPI. Warnings are errors.
#
#   scripts/docs.sh            build
#   scripts/docs.sh --serve    build, serve at http://localhost:8000, and rebuild on changes
set -euo pipefail
cd "$(dirname "$0")/.."
venv=build/docs-venv
export NO_MKDOCS_2_WARNING=1  # an announcement of mkdocs-material
if ! cmp -s docs/requirements.txt "$venv/requirements.txt"; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --requirement docs/requirements.txt
  cp docs/requirements.txt "$venv/requirements.txt"
fi
if [[ ${1:-} == --serve ]]; then
  exec "$venv/bin/mkdocs" serve --strict
fi
"$venv/bin/mkdocs" build --strict --quiet
echo "docs: build/site/index.html"
