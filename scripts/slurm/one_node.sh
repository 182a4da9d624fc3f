#!/usr/bin/env bash
# Tries scripts/slurm/train.sbatch with a SLURM of one node on this machine, on the CPU: a run that its time limit puts
# back in the queue, also by hand, is to have the same losses, to the last digit, as one that was never stopped; two
# tasks of srun, put back in the queue as well, are to have them but for rounding.
#
#   apt-get install --no-install-recommends slurmctld slurmd slurm-client munge python3-numpy python3-pil
#   VLMTRAIN=build/release/vlmtrain scripts/slurm/one_node.sh
#
# Run it as root. The daemons and all files live in a temporary folder, which goes at the end; what the machine has of
# SLURM is not touched. KEEP=1 keeps the folder. It takes five to ten minutes: each run is as long as SECONDS_OF_RUN (200)
# holds steps.
set -euo pipefail
cd "$(dirname "$0")/../.."
vlmtrain=$(realpath "${VLMTRAIN:-build/release/vlmtrain}")
seconds_of_run=${SECONDS_OF_RUN:-200}
dir=$(mktemp -d /tmp/vlmtrain-slurm.XXXXXX)
host=$(hostname -s)
daemons=()

clean_up() {
  [[ -z ${SLURM_CONF:-} ]] || scancel --user=root 2>/dev/null || true
  sleep 2
  for pid in "${daemons[@]}"; do kill "$pid" 2>/dev/null || true; done
  for pid in "${daemons[@]}"; do wait "$pid" 2>/dev/null || true; done
  if [[ -n ${KEEP:-} ]]; then echo "kept: $dir"; else rm -rf "$dir"; fi
}
trap clean_up EXIT

fail() {
  echo "one_node.sh: $*" >&2
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

start_cluster() {
  mkdir "$dir/state" "$dir/spool"
  # Credentials that live for ten seconds: SLURM holds a job that goes back to the queue for as long.
  cat >"$dir/slurm.conf" <<CONFIG
ClusterName=one
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$dir/munge.socket,cred_expire=10
SlurmctldPort=$(free_port)
SlurmdPort=$(free_port)
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.pid
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
ReturnToService=2
MpiDefault=none
NodeName=$host NodeAddr=127.0.0.1 CPUs=2 RealMemory=2000 State=UNKNOWN
PartitionName=main Nodes=$host Default=YES MaxTime=INFINITE State=UP
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
  slurmd -D -N "$host" -L "$dir/slurmd.log" 2>/dev/null &
  daemons+=($!)
  wait_until 30 "idle node" eval 'sinfo --noheader --format=%T | grep -qx idle'
}

settings() {  # folder of the run, steps
  printf '%s\n' "model.path=$dir/model" "data.train=$dir/data/train.json" "data.eval=" "data.image_root=$dir/data" \
    "training.max_steps=$2" training.micro_batch_size=4 "output.dir=$dir/$1" output.save_steps=0
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

submit() {  # name, options of sbatch …; prints the job's number
  local name=$1
  shift
  mapfile -t arguments < <(settings "$name" "$steps")
  VLMTRAIN=$vlmtrain sbatch --parsable --gres=none --cpus-per-task=1 --mem=1500M --job-name="$name" \
    --output="$dir/$name.log" "$@" scripts/slurm/train.sbatch configs/quickstart.yaml --device cpu --quiet \
    "${arguments[@]}"
}

state_of() { scontrol show job "$1" | sed -n 's/.*JobState=\([A-Z_]*\).*/\1/p'; }
turns_of() { scontrol show job "$1" | sed -n 's/.*Restarts=\([0-9]*\).*/\1/p'; }
is_over() { [[ $(state_of "$1") == @(COMPLETED|FAILED|TIMEOUT|CANCELLED|NODE_FAIL|OUT_OF_MEMORY) ]]; }
is_running() { [[ $(state_of "$1") == RUNNING ]]; }
has_steps() { [[ $(wc -l <"$dir/$1/metrics.jsonl") -ge $2 ]]; }

/usr/bin/python3 scripts/make_shapes.py --out "$dir/data" --train 200 >/dev/null
"$vlmtrain" init --preset smolvlm-tiny --out "$dir/model" --seed 1 2>/dev/null
steps=$(steps_of_a_run)
start_cluster
echo "$(slurmd -V), $(munged --version | head -n 1); one node, one CPU a job, $steps steps"

# The warning comes 60 to 90 seconds before this limit of two minutes ends, since SLURM looks every 30 seconds and adds
# a minute: each turn has at least 30 seconds.
stopped=$(submit stopped --time=2 --signal=B:USR1@30)
wait_until 60 "first step" has_steps stopped 1
sleep 5
scancel --batch --signal=USR1 "$stopped"   # by hand, beside those of the time limit
wait_until 1200 "end of the run that is stopped" is_over "$stopped"
whole=$(submit whole --time=60)
wait_until 1200 "end of the run that is not stopped" is_over "$whole"

ranks=$(submit ranks --ntasks=2 --time=60)
wait_until 120 "first step of two ranks" has_steps ranks 1
sleep 5
scancel --batch --signal=USR1 "$ranks"
wait_until 1200 "end of the run of two ranks" is_over "$ranks"

for job in stopped whole ranks; do
  number=${!job}
  echo "$job: $(state_of "$number") after $(turns_of "$number") requeues, $(wc -l <"$dir/$job/metrics.jsonl") steps"
done
grep -h "vlmtrain stopped on request" "$dir/stopped.log" | sed 's/^/  /'
[[ $(state_of "$stopped") == COMPLETED && $(state_of "$whole") == COMPLETED && $(state_of "$ranks") == COMPLETED ]] || fail "a run did not complete"
(($(turns_of "$ranks") >= 1)) || fail "the run of two ranks did not go back in the queue"
[[ -s $dir/ranks/rank-1.log ]] || fail "srun's tasks did not train together"
(($(turns_of "$stopped") >= 2)) || fail "fewer than two requeues: set SECONDS_OF_RUN above $seconds_of_run"
/usr/bin/python3 - "$dir/stopped/metrics.jsonl" "$dir/whole/metrics.jsonl" "$dir/ranks/metrics.jsonl" <<'PYTHON'
import json, sys

KEYS = ("step", "loss", "grad_norm", "learning_rate", "tokens", "samples")
stopped, whole = ([[json.loads(line)[key] for key in KEYS] for line in open(name)] for name in sys.argv[1:3])
differing = [a[0] for a, b in zip(stopped, whole) if a != b]
if len(stopped) != len(whole) or differing:
    sys.exit(f"{len(stopped)} and {len(whole)} steps; {len(differing)} differ, the first is {differing[:1]}")
# Rounding grows with the steps.
FIRST = 20
ranks = [json.loads(line)["loss"] for line in open(sys.argv[3])]
difference = max(abs(a[1] - b) / a[1] for a, b in zip(whole[:FIRST], ranks))
if len(ranks) != len(whole) or difference > 1e-4:
    sys.exit(f"two ranks: {len(ranks)} steps; losses differ by {difference:.1e}")
print(f"two ranks: {len(ranks)} steps, the losses of the first {FIRST} differ by {difference:.1e} at most")
print(f"{len(whole)} steps: {', '.join(KEYS)} are equal to the last digit; last loss {whole[-1][1]}")
PYTHON
