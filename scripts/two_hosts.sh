#!/usr/bin/env bash
# Trains on four ranks of two hosts, two on each, on the CPU: the hosts are network namespaces of this machine (scripts/hosts.sh).
# With and without a configured interface, losses must equal those of four ranks on one host, to the last digit. If the second
# host is disconnected during training, all ranks must end within 30 seconds with the reason, and the same command must resume.
#
#   VLMTRAIN=build/release/vlmtrain scripts/two_hosts.sh
#
# Run it as root; needs iproute2. It takes three minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/hosts.sh
vlmtrain=$(realpath "${VLMTRAIN:-build/release/vlmtrain}")
dir=$(mktemp -d /tmp/vlmtrain-hosts.XXXXXX)
records=$PWD/tests/parity/data/mixed_batch
readonly PORT=29500 RANKS=4 RANKS_OF_HOST=2 STEPS=60 SECONDS_TO_END=30
ranks=()

clean_up() {
  for id in "${ranks[@]}"; do kill -s KILL "$id" 2>/dev/null || true; done
  remove_hosts || true
  if [[ -n ${KEEP:-} ]]; then echo "kept: $dir"; else rm -rf "$dir"; fi
}
trap clean_up EXIT

fail() {
  echo "two_hosts.sh: $*" >&2
  tail -n 5 "$dir"/rank-*.txt >&2
  exit 1
}

settings() {  # folder of the run
  printf '%s\n' --config "$dir/train.yaml" --device cpu "output.dir=$dir/$1" "training.max_steps=$STEPS"
}

start() {  # folder of the run, optional interface
  local rank host
  mapfile -t arguments < <(settings "$1")
  ranks=()
  for ((rank = 0; rank < RANKS; ++rank)); do
    host=$((rank / RANKS_OF_HOST + 1))
    on_host "$host" env RANK=$rank WORLD_SIZE=$RANKS LOCAL_RANK=$((rank % RANKS_OF_HOST)) MASTER_ADDR=host1 MASTER_PORT=$PORT \
      OMP_NUM_THREADS=1 ${2:+GLOO_SOCKET_IFNAME=$2} "$vlmtrain" "${arguments[@]}" >"$dir/rank-$rank.txt" 2>&1 &
    ranks+=($!)
  done
}

finish() {
  local rank
  for ((rank = 0; rank < RANKS; ++rank)); do wait "${ranks[rank]}" || fail "rank $rank ended with $?"; done
}

steps_of() { if [[ -f $dir/$1/metrics.jsonl ]]; then wc -l <"$dir/$1/metrics.jsonl"; else echo 0; fi; }

compare() {
  /usr/bin/python3 - "$dir/one/metrics.jsonl" "$dir/$1/metrics.jsonl" <<'PYTHON' || fail "$1: other losses than on one host"
import json, sys

one, other = ([[json.loads(line)[key] for key in ("step", "loss", "grad_norm")] for line in open(name)] for name in sys.argv[1:])
sys.exit(one != other)
PYTHON
}

mkdir "$dir/images"
cp "$records"/images/* "$dir/images"
/usr/bin/python3 - "$records/conversations.json" "$dir/train.json" <<'PYTHON'
import json, sys

samples = json.load(open(sys.argv[1]))
json.dump([{**samples[i % len(samples)], "id": f"sample-{i}"} for i in range(59)], open(sys.argv[2], "w"))
PYTHON
"$vlmtrain" init --preset smolvlm-tiny --out "$dir/model" --seed 1 2>/dev/null
cat >"$dir/train.yaml" <<YAML
model:
  path: $dir/model
data:
  train: $dir/train.json
  image_root: $dir/images
training:
  global_batch_size: 12
  precision: fp32
output:
  save_steps: 10
  sample_predictions: 0
  report: false
YAML

make_hosts 2
mapfile -t arguments < <(settings one)
OMP_NUM_THREADS=1 "$vlmtrain" "${arguments[@]}" --nproc-per-node $RANKS --quiet || fail "four ranks on one host do not train"
for interface in "" wire0; do
  start "two${interface:+-$interface}" "$interface"
  finish
  compare "two${interface:+-$interface}"
  echo "GLOO_SOCKET_IFNAME=$interface: $STEPS steps, losses and norms equal to those of $RANKS ranks on one host, to the last digit"
done

for away in 2 1; do
  run=cut-$away
  start "$run"
  until (($(steps_of "$run") >= STEPS / 3)); do
    kill -0 "${ranks[0]}" 2>/dev/null || fail "rank 0 ended before its host was cut off"
    sleep 0.1
  done
  cut_off "$away"
  SECONDS=0
  for ((rank = 0; rank < RANKS; ++rank)); do
    code=0
    while kill -0 "${ranks[rank]}" 2>/dev/null && ((SECONDS <= 2 * SECONDS_TO_END)); do sleep 0.1; done
    if kill -0 "${ranks[rank]}" 2>/dev/null; then fail "rank $rank still runs $SECONDS s after host$away was cut off"; fi
    wait "${ranks[rank]}" || code=$?
    words=$({ cat "$dir/rank-$rank.txt" "$dir/$run/rank-$rank.log" 2>/dev/null || true; } | grep "rank [0-9]: process" | tail -n 1) || fail "rank $rank does not say why"
    echo "host$away cut off after $(steps_of "$run") steps: rank $rank (host$((rank / RANKS_OF_HOST + 1))) ended with $code within $SECONDS s: $words"
  done
  ((SECONDS <= SECONDS_TO_END)) || fail "it took $SECONDS s"
  join "$away"
  start "$run"
  finish
  compare "$run"
  echo "the link is back, the same command: $STEPS steps, equal to the last digit"
done
