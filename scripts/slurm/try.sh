#!/usr/bin/env bash
# Tests each script of this folder with a SLURM of two nodes on this machine, on the CPU. The nodes are network namespaces with
# their own names and addresses (scripts/hosts.sh). Compares the losses of runs that are requeued, lose a rank or run
# uninterrupted, to the last digit if the numbers of ranks are equal.
#
#   apt-get install --no-install-recommends slurmctld slurmd slurm-client munge iproute2 python3-numpy python3-pil
#   VLMTRAIN=build/release/vlmtrain scripts/slurm/try.sh [JOB …]
#
# Run it as root. The daemons and all files are in a temporary folder, which is removed at the end; an installed SLURM is not
# changed. KEEP=1 keeps the folder. It takes fifteen minutes: a run has the number of steps that one process completes in
# SECONDS_OF_RUN (200).
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/hosts.sh
vlmtrain=$(realpath "${VLMTRAIN:-build/release/vlmtrain}")
seconds_of_run=${SECONDS_OF_RUN:-200}
dir=$(mktemp -d /tmp/vlmtrain-slurm.XXXXXX)
daemons=()
declare -A number steps_wanted

clean_up() {
  [[ -z ${SLURM_CONF:-} ]] || scancel --user=root 2>/dev/null || true
  sleep 2
  for pid in "${daemons[@]}"; do kill "$pid" 2>/dev/null || true; done
  sleep 3
  for pid in "${daemons[@]}"; do kill -s KILL "$pid" 2>/dev/null || true; done
  wait
  remove_hosts || true
  if [[ -n ${KEEP:-} ]]; then echo "kept: $dir"; else rm -rf "$dir"; fi
}
trap clean_up EXIT

fail() {
  echo "try.sh: $*" >&2
  tail -n 20 "$dir"/*.log >&2
  exit 1
}

wait_until() {  # seconds, what for, command …
  local until=$((SECONDS + $1)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < until)) || fail "no $what in time"
    sleep 0.5
  done
}

free_port() {
  /usr/bin/python3 -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])'
}

are_idle() { [[ $(sinfo --noheader --Node --format=%T | grep -cx idle) == "$1" ]]; }

start_cluster() {
  local node
  mkdir "$dir/state" "$dir/spool-1" "$dir/spool-2"
  # Credentials expire after ten seconds; SLURM holds a requeued job for as long.
  cat >"$dir/slurm.conf" <<CONFIG
ClusterName=two
SlurmctldHost=$(hostname -s)($(address_of 0))
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$dir/munge.socket,cred_expire=10
SlurmctldPort=$(free_port)
SlurmdPort=$(free_port)
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd-%n.pid
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool-%n
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
ReturnToService=2
KillWait=20
MpiDefault=none
NodeName=host1 NodeAddr=$(address_of 1) CPUs=4 RealMemory=4000 State=UNKNOWN
NodeName=host2 NodeAddr=$(address_of 2) CPUs=4 RealMemory=4000 State=UNKNOWN
PartitionName=main Nodes=host[1-2] Default=YES MaxTime=INFINITE State=UP
CONFIG
  export SLURM_CONF=$dir/slurm.conf
  head -c 1024 /dev/urandom >"$dir/munge.key"
  chmod 600 "$dir/munge.key"
  chmod 755 "$dir"
  munged --foreground --force --key-file="$dir/munge.key" --socket="$dir/munge.socket" --pid-file="$dir/munge.pid" \
    --log-file="$dir/munge.log" --seed-file="$dir/munge.seed" 2>/dev/null &
  daemons+=($!)
  wait_until 20 "munge credential" munge --socket="$dir/munge.socket" --no-input
  slurmctld -D -L "$dir/slurmctld.log" 2>/dev/null &
  daemons+=($!)
  wait_until 20 "answer of slurmctld" scontrol ping
  for node in 1 2; do
    mkdir -p "$dir/spool-host$node"
    on_host "$node" slurmd -D -N "host$node" -L "$dir/slurmd-$node.log" 2>/dev/null &
    daemons+=($!)
  done
  wait_until 30 "idle nodes" are_idle 2
}

settings() {  # folder of the run, steps
  printf '%s\n' "model.path=$dir/model" "data.train=$dir/data/train.json" "data.eval=" "data.image_root=$dir/data" \
    "training.max_steps=$2" training.micro_batch_size=2 "output.dir=$dir/$1" output.save_steps=0 output.sample_predictions=0
}

steps_of_a_run() {
  mapfile -t arguments < <(settings probe 20)
  OMP_NUM_THREADS=1 "$vlmtrain" train --config configs/quickstart.yaml --device cpu --quiet "${arguments[@]}" >&2
  /usr/bin/python3 - "$dir/probe/metrics.jsonl" "$seconds_of_run" <<'PYTHON'
import json, statistics, sys

times = [json.loads(line)["step_seconds"] for line in open(sys.argv[1])]
print(round(float(sys.argv[2]) / statistics.median(times)))
PYTHON
}

submit() {  # name, script, steps, options of sbatch … [-- key=value …]
  local name=$1 script=$2 steps=$3 options=(--gres=none --cpus-per-task=1 --mem=1500M) keys=() behind=(configs/quickstart.yaml)
  shift 3
  while (($# > 0)) && [[ $1 != -- ]]; do options+=("$1"); shift; done
  while (($# > 1)); do keys+=("$2"); shift; done
  [[ $script != array ]] || behind+=("$dir/runs.txt")
  mapfile -t arguments < <(settings "$name" "$steps")
  [[ $script != array ]] || mapfile -t arguments < <(settings "$name" "$steps" | grep -v '^output.dir=')
  number[$name]=$(VLMTRAIN=$vlmtrain sbatch --parsable --job-name="$name" --output="$dir/$name.log" "${options[@]}" \
    "scripts/slurm/$script.sbatch" "${behind[@]}" --device cpu --quiet "${arguments[@]}" "${keys[@]}")
  steps_wanted[$name]=$steps
}

value_of() { scontrol show job "${number[$1]}" | sed -n "s/.*$2=\([A-Za-z0-9_]*\).*/\1/p"; }
is_over() { [[ $(value_of "$1" JobState) == @(COMPLETED|FAILED|TIMEOUT|CANCELLED|NODE_FAIL|OUT_OF_MEMORY) ]]; }
is_in_turn() { (($(value_of "$1" Restarts) >= $2)); }
has_steps() { [[ $(wc -l <"$dir/$1/metrics.jsonl") -ge $2 ]]; }
train_to() {
  wait_until 240 "step $2 of $1" eval "has_steps $1 $2 || is_over $1"
  has_steps "$1" "$2" || fail "$1 ended before step $2"
}

process_of() {  # name, rank
  local id
  for id in $(pgrep --exact --full "$vlmtrain train .*output.dir=$dir/$1( .*)?"); do
    if tr '\0' '\n' <"/proc/$id/environ" | grep -qx "SLURM_PROCID=$2"; then echo "$id"; fi
  done
}

finish() {  # name, minimum number of requeues; the job must complete all steps
  wait_until 1500 "end of $1" is_over "$1"
  echo "$1: $(value_of "$1" JobState) after $(value_of "$1" Restarts) requeues, $(wc -l <"$dir/$1/metrics.jsonl") of ${steps_wanted[$1]} steps"
  grep -h "back in the queue" "$dir/$1.log" | sed 's/^/  /' || true
  [[ $(value_of "$1" JobState) == COMPLETED ]] || fail "$1 did not complete"
  has_steps "$1" "${steps_wanted[$1]}" || fail "$1 lacks steps"
  is_in_turn "$1" "$2" || fail "$1 went back in the queue less than $2 times"
}

compare() {  # one run, another, "equal" or the largest relative difference of the first 20 losses
  /usr/bin/python3 - "$@" "$dir" <<'PYTHON'
import json, sys

KEYS = ("step", "loss", "grad_norm", "learning_rate", "tokens", "samples")
FIRST = 20  # rounding differences grow with the steps
a, b, wanted, folder = sys.argv[1:]
one, other = ([[json.loads(line)[key] for key in KEYS] for line in open(f"{folder}/{name}/metrics.jsonl")] for name in (a, b))
differing = [x[0] for x, y in zip(one, other, strict=True) if x != y]
if wanted == "equal":
    if differing:
        sys.exit(f"{a} and {b}: {len(differing)} of {len(one)} steps differ, the first is {differing[0]}")
    print(f"{a} and {b}: {', '.join(KEYS)} of {len(one)} steps are equal to the last digit")
else:
    apart = [abs(x[1] - y[1]) / x[1] for x, y in zip(one, other)]
    if max(apart[:FIRST]) > float(wanted):
        sys.exit(f"{a} and {b}: losses differ by {max(apart[:FIRST]):.1e}")
    print(f"{a} and {b}: losses differ by {max(apart[:FIRST]):.1e} at most in {FIRST} steps, by {max(apart):.1e} in {len(one)}")
PYTHON
}

# SLURM sends the time limit's signal 60 to 90 seconds before the limit of two minutes, because it checks every 30 seconds and
# adds a minute. So each turn has at least 30 seconds.
try_one_gpu() {
  submit stopped one_gpu "$steps" --time=2 --signal=USR1@30
  train_to stopped 1
  sleep 5
  scancel --signal=USR1 "${number[stopped]}"   # in addition to those of the time limit
  finish stopped 2
  submit whole one_gpu "$steps" --time=60
  finish whole 0
  compare stopped whole equal
}

try_cancelled() {
  submit cancelled one_gpu "$steps" --time=60
  train_to cancelled 3
  scancel "${number[cancelled]}"
  wait_until 60 "end of what is cancelled" is_over cancelled
  sleep 15
  is_over cancelled || fail "a job that was cancelled came back"
  echo "cancelled: $(value_of cancelled JobState) after $(value_of cancelled Restarts) requeues, $(ls "$dir/cancelled/checkpoints")"
}

# Three turns of two ranks: stopped on request, requeued by an administrator without a request, and run to completion.
try_one_node() {
  local few=$((steps / 3)) options=(--ntasks=2 --time=60)
  submit ranks one_node "$few" "${options[@]}" -- output.save_steps=10
  train_to ranks 5
  scancel --signal=USR1 "${number[ranks]}"
  wait_until 120 "second turn of two ranks" is_in_turn ranks 1
  train_to ranks $((few / 3))
  scontrol requeue "${number[ranks]}"
  finish ranks 2
  [[ -s $dir/ranks/rank-1.log ]] || fail "srun's tasks did not train together"
  submit ranks-whole one_node "$few" "${options[@]}" -- output.save_steps=10
  finish ranks-whole 0
  compare ranks ranks-whole equal
  submit one-whole one_gpu "$few" --time=60
  finish one-whole 0
  compare one-whole ranks-whole 1e-5
}

# Rank 2 of four is killed, then rank 0, then rank 1 is stopped; srun kills processes that do not end.
try_lost() {
  local few=$((steps / 6)) options=(--ntasks=4 --time=60) rank turn=0 begin
  submit lost one_node "$few" "${options[@]}" -- output.save_steps=5
  for rank in 2 0 1; do
    train_to lost $(((turn + 1) * few / 4))
    begin=$SECONDS
    id=$(process_of lost "$rank")
    kill -s "$([[ $rank == 1 ]] && echo STOP || echo KILL)" "$id"
    turn=$((turn + 1))
    wait_until 180 "turn after rank $rank is lost" is_in_turn lost "$turn"
    if [[ -d /proc/$id ]]; then fail "rank $rank of the turn before is still there"; fi
    echo "lost: rank $rank; back in the queue after $((SECONDS - begin)) s"
  done
  finish lost 3
  grep -h "rank [0-9]: process" "$dir/lost.log" | sed 's/.*\(rank [0-9]: process\) [0-9]* on/  \1 … on/' | sort | uniq -c
  submit lost-whole one_node "$few" "${options[@]}" -- output.save_steps=5
  finish lost-whole 0
  compare lost lost-whole equal
}

try_several_nodes() {
  local few=$((steps / 6)) options=(--nodes=2 --ntasks-per-node=2 --time=60)
  submit nodes several_nodes "$few" "${options[@]}" -- output.save_steps=5
  train_to nodes 5
  scancel --signal=USR1 "${number[nodes]}"
  finish nodes 1
  submit four one_node "$few" --ntasks=4 --time=60
  finish four 0
  compare nodes four equal
}

# The second of three is stopped; the others continue.
try_array() {
  local run few=$((steps / 3))
  for run in 1 2 3; do echo "output.dir=$dir/array-$run training.learning_rate=${run}.0e-4"; done >"$dir/runs.txt"
  submit array array "$few" --array=1-3 --time=60 --output="$dir/array-%a.log"
  train_to array-2 3
  local job=${number[array]}
  scancel --signal=USR1 "${job}_2"
  for run in 1 2 3; do
    number[array-$run]=${job}_$run
    steps_wanted[array-$run]=$few
  done
  for run in 1 2 3; do finish "array-$run" "$((run == 2))"; done
  [[ $(value_of array-1 Restarts) == 0 && $(value_of array-3 Restarts) == 0 ]] || fail "others of the array went back as well"
  submit second one_gpu "$few" --time=60 -- training.learning_rate=2.0e-4
  finish second 0
  compare array-2 second equal
}

/usr/bin/python3 scripts/make_shapes.py --out "$dir/data" --train 200 >/dev/null
"$vlmtrain" init --preset smolvlm-tiny --out "$dir/model" --seed 1 2>/dev/null
steps=$(steps_of_a_run)
make_hosts 2
start_cluster
echo "$(slurmd -V), $(munged --version | head -n 1); two nodes, one CPU a task, $steps steps of one process in $seconds_of_run s"
for job in "${@:-one_gpu cancelled one_node lost several_nodes array}"; do
  for one in $job; do "try_$one"; done
done
echo "all right"
