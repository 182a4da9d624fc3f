#!/usr/bin/env bash
# Installs the wheel with pip in a new environment, with torch and its other dependencies, and tests it there: a plan, the
# quickstart's training, a virtual GPU, and the messages on machines that cannot run it. If run as root, the commands run as a
# user who can write only to one folder and can read neither this checkout nor its LibTorch.
#
#   scripts/test_wheel.sh [--steps N] [WHEEL [PIP OPTIONS…]]     default: 300 steps, and a new wheel
#
# pip downloads 2.7 GB, or uses a folder: --no-index --find-links FOLDER. Needs 9 GB in TMPDIR, which is freed at the end.
# PYTHON: the interpreter of the environment, default /usr/bin/python3.
set -euo pipefail
checkout=$(realpath "$(dirname "$0")/..")
cd "$checkout"
steps=300
if [[ ${1:-} == --steps ]]; then
  steps=$2
  shift 2
fi
torch=$(cat cmake/libtorch.version)
libtorch=$(scripts/setup.sh --print-libtorch)
folder=$(mktemp -d)
trap 'chmod -R u+w "$folder"; rm -rf "$folder"' EXIT
if [[ $# -eq 0 ]]; then
  scripts/make_wheel.sh "$folder"
  set -- "$folder"/*.whl
fi
wheel=$(realpath "$1")
options=("${@:2}")
chmod 755 "$folder"
mkdir "$folder/home"

# shellcheck disable=SC2317  # called by expect
# as_user COMMAND…: runs it in the user's folder with an empty environment.
as_user() {
  local run=(env -i "HOME=$folder/home" "PATH=$folder/env/bin:/usr/bin:/bin" OMP_WAIT_POLICY=passive "${extra[@]}" "$@")
  if [[ $(id -u) -eq 0 ]]; then
    # shellcheck disable=SC2016
    unshare --mount sh -c 'for hidden in "$1" "$2"; do [ ! -d "$hidden" ] || mount -t tmpfs -o size=0,mode=0 none "$hidden"; done
      cd "$3" && shift 3 && exec setpriv --reuid=65534 --regid=65534 --clear-groups "$@"' sh \
      "$checkout" "$libtorch" "$folder/home" "${run[@]}"
  else
    (cd "$folder/home" && exec "${run[@]}")
  fi
}
extra=()
failures=0
# expect NAME EXIT_CODE PATTERN COMMAND…: checks that the output matches the extended regular expression.
expect() {
  local name=$1 code=$2 pattern=$3 started=$EPOCHREALTIME actual=0
  shift 3
  "$@" >"$folder/said" 2>&1 || actual=$?
  if [[ $actual -eq $code ]] && grep -Eq "$pattern" "$folder/said"; then
    printf 'ok      %s (%s s)\n' "$name" "$(seconds_since "$started")"
  else
    printf 'FAILED  %s: exit code %s, not %s, or not "%s" in\n' "$name" "$actual" "$code" "$pattern"
    tail -n 20 "$folder/said"
    failures=$((failures + 1))
  fi
}
seconds_since() { awk -v a="$1" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }'; }
pip() { "$folder/$1/bin/python" -m pip --quiet --disable-pip-version-check "${@:2}"; }

started=$EPOCHREALTIME
"${PYTHON:-/usr/bin/python3}" -m venv "$folder/env"
pip env install "${options[@]}" "${wheel}[quickstart]"
echo "pip install: $(seconds_since "$started") s; the wheel is $(du -k "$wheel" | cut -f 1) KiB, the environment $(du -sm "$folder/env" | cut -f 1) MiB"
packages=$("$folder/env/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
if [[ $(id -u) -eq 0 ]]; then
  chown 65534:65534 "$folder/home"
else
  chmod -R a-w "$folder/env"
fi

expect "a plan, the first" 0 '^fits: ' as_user vlmtrain plan --gpu-gb 24 --images 2
echo "from pip install to the end of the first plan: $(seconds_since "$started") s"
expect "the version" 0 '^[0-9]+\.[0-9]+\.[0-9]+$' as_user python -m vlmtrain --version
expect "help" 0 'plan.*' as_user vlmtrain --help
expect "doctor" 0 'site-packages/vlmtrain/../torch/lib, found by the program' as_user vlmtrain doctor
expect "pip finds nothing missing" 0 'No broken requirements' as_user python -m pip check
expect "it takes nothing from this checkout" 0 'libtorch_cpu.so => '"$packages/vlmtrain/../torch/lib/libtorch_cpu.so" \
  as_user ldd "$packages/vlmtrain/vlmtrain-core"
expect "the quickstart, in $steps steps" 0 'Correct held-out answers: .* after training' \
  as_user python -m vlmtrain.quickstart 1 "training.max_steps=$steps"
grep '^Held-out' "$folder/said" || true
config=$packages/vlmtrain/shapes/quickstart.yaml
expect "a dry run on a virtual GPU" 0 'step +3' \
  as_user vlmtrain --config "$config" --device virtual:h100 training.max_steps=3 output.dir=dry-run
expect "an answer" 0 '.' as_user sh -c 'vlmtrain generate --checkpoint quickstart/run/checkpoints/step-* --image quickstart/data/images/held_out_*0.jpg --prompt "How many shapes are there?"'

# shellcheck disable=SC2016
expect "SIGTERM, to the process that was started, writes a checkpoint" 75 'checkpoint' as_user sh -c '
  vlmtrain --config "$1" training.max_steps=100000 output.dir=stopped & process=$!
  until grep -qs "\"step\": *2" stopped/metrics.jsonl; do sleep 0.2; kill -0 $process || exit; done
  kill -TERM $process; wait $process' sh "$config"
expect "a folder that may not be written to" 5 'output.dir: cannot create the folder .*/vlmtrain/run: Permission denied' \
  as_user vlmtrain --config "$config" training.max_steps=1 "output.dir=$packages/vlmtrain/run"
cp tests/image/data/bt709.mp4 tests/image/data/vp9.webm "$folder/home"
# shellcheck disable=SC2016
expect "training on video files" 0 'step +2' as_user sh -c '
  for video in bt709.mp4 vp9.webm; do
    echo "{\"videos\": [\"$video\"], \"messages\": [{\"role\": \"user\", \"content\": \"<video>What?\"}, {\"role\": \"assistant\", \"content\": \"A\"}]}"
  done >video.jsonl
  vlmtrain init --preset qwen2.5-vl-tiny --out qwen
  echo "model: {path: qwen}
data: {train: video.jsonl, on_bad_sample: fail}
training: {global_batch_size: 1}
output: {dir: video}" >video.yaml
  vlmtrain --config video.yaml training.max_steps=2'
# shellcheck disable=SC2016
expect "a model that the Hub does not have, with the plug-in for downloads" 2 'is neither a folder nor a repository at http' as_user sh -c '
  python -u -m http.server --bind 127.0.0.1 0 >server.txt 2>&1 & server=$!
  until grep -qs " port " server.txt; do sleep 0.2; kill -0 $server || exit; done
  HF_ENDPOINT=http://127.0.0.1:$(sed -n "s/.* port \([0-9]*\) .*/\1/p" server.txt) vlmtrain download some/model; code=$?
  kill $server; exit $code'

# torch in another folder: the wheel in a separate folder, torch in the environment.
pip env install "${options[@]}" --no-deps --target "$folder/apart" "$wheel"
extra=("PYTHONPATH=$folder/apart")
expect "torch in another folder than the wheel" 0 '^fits: ' as_user python -c '
import sys, vlmtrain.__main__ as launcher
assert launcher.PROGRAM.startswith(sys.argv.pop(1)), launcher.PROGRAM
launcher.main()' "$folder/apart" plan --gpu-gb 24 --images 2
extra=()

# Other environments with only the wheel and fake packages.
"${PYTHON:-/usr/bin/python3}" -m venv "$folder/bare"
pip bare install "${options[@]}" --no-deps "$wheel"
bare=$("$folder/bare/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
expect "without torch" 5 "torch $torch is not installed for this Python: .* -m pip install torch==$torch" as_user "$folder/bare/bin/vlmtrain" plan
mkdir -p "$bare/torch/lib"
touch "$bare/torch/__init__.py" "$bare/torch/lib/libtorch_cpu.so"
echo "__version__ = '2.10.0+cu128'" >"$bare/torch/version.py"
expect "with another torch" 5 'is torch 2.10.0\+cu128; this wheel was built for' as_user "$folder/bare/bin/vlmtrain" plan
echo "__version__ = '$torch+cpu'" >"$bare/torch/version.py"
for file in "$packages"/torch/lib/*; do
  [[ $file == *cuda* ]] || ln -sf "$file" "$bare/torch/lib/"
done
ln -s "$packages/nvidia" "$bare/nvidia" # which this libtorch_cpu.so needs; that of a torch for the CPU alone does not
expect "without CUDA's libraries: a plan says so" 5 'CPU-only torch has none' as_user "$folder/bare/bin/vlmtrain" plan --gpu-gb 24 --images 2
expect "without CUDA's libraries: training on the CPU" 0 'step +2' \
  as_user "$folder/bare/bin/vlmtrain" --config "$config" training.max_steps=2 output.dir=cpu
expect "an older system" 1 'is not a supported wheel on this platform' \
  pip bare install --no-deps --platform manylinux_2_27_x86_64 --only-binary=:all: --target "$folder/older" "$wheel"

echo "$failures failed"
exit $((failures > 0))
