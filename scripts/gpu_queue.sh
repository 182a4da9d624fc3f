#!/usr/bin/env bash
# Measurements that need a GPU, those that are missing or stale first: docs/contributing/gpu-queue.md, --help
set -euo pipefail
exec "${PYTHON:-python3}" -B "$(dirname "$(readlink -f "$0")")/gpu_queue" "$@"
