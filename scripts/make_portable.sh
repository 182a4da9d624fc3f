#!/usr/bin/env bash
# Builds a folder that runs with LibTorch's wheel and without Debian's packages: vlmtrain and vlmtrain-core, which it starts,
# gpu_tests, the stub libraries of the virtual GPU (vgpu/), and the plug-ins for NCCL and for downloads.
#
#   scripts/make_portable.sh [--program-alone] [FOLDER [BUILD]]     default: portable, and build/portable of the preset "portable"
#
# The programs search LibTorch's folder torch/ in FOLDER (also as a link), next to FOLDER, and in LD_LIBRARY_PATH;
# scripts/gpu_queue.sh finds that of Python.
# --program-alone: without gpu_tests.
set -euo pipefail
cd "$(dirname "$0")/.."
programs=(vlmtrain vlmtrain-core gpu_tests)
if [[ ${1:-} == --program-alone ]]; then
  programs=(vlmtrain vlmtrain-core)
  shift
fi
folder=${1:-portable}
build=${2:-build/portable}
most_mib=64

if [[ $build == build/portable ]]; then
  scripts/make_ffmpeg.sh
  scripts/make_curl.sh
  cmake --preset portable >/dev/null
  cmake --build --preset portable --target "${programs[@]/vlmtrain-core/vlmtrain_core}"
fi
mkdir -p "$folder/vgpu"
for program in vlmtrain vlmtrain-core; do strip -o "$folder/$program" "$build/$program"; done
[[ ${programs[*]} != *gpu_tests* ]] || strip -o "$folder/gpu_tests" "$build/tests/gpu_tests"
while read -r library; do
  strip --strip-unneeded -o "$folder/vgpu/$(basename "$library")" "$library"
done < <(find "$build/vgpu" -type f)

plugins=(libvlmtrain_nccl.so libvlmtrain_curl.so)
# Custom kernels, if setup.sh could download CUDA's compiler.
[[ ! -f $build/libvlmtrain_kernels.so ]] || plugins+=(libvlmtrain_kernels.so)
for plugin in "${plugins[@]}"; do strip --strip-unneeded -o "$folder/$plugin" "$build/$plugin"; done

needed() { objdump -p "$1" | awk '$1 == "NEEDED" { print $2 }'; }
bad=0
for program in "${programs[@]}" libvlmtrain_curl.so; do
  for library in $(needed "$folder/$program"); do
    case $library in
      libtorch_cpu.so | libc10.so | libstdc++.so.6 | libgcc_s.so.1 | libc.so.6 | libm.so.6 | ld-linux-x86-64.so.2) ;;
      *) echo "make_portable: $program needs $library, which another machine may lack" >&2; bad=1 ;;
    esac
  done
done
files=("${programs[@]/#/$folder/}" "${plugins[@]/#/$folder/}" "$folder"/vgpu/*)
for file in "${files[@]}"; do
  path=$(objdump -p "$file" | awk '$1 == "RPATH" || $1 == "RUNPATH" { print $2 }')
  if [[ $path != '$ORIGIN/'* && $path != '$ORIGIN' ]]; then
    echo "make_portable: $file searches libraries in ${path:-no folder}, not next to itself" >&2
    bad=1
  fi
done
newest() { objdump -T "${files[@]}" | grep -o "\b$1_[0-9.]*" | sort -Vu | tail -n 1; }
needs=()
while read -r name oldest; do
  needs+=("$(newest "$name")")
  if [[ $(printf '%s\n' "${name}_$oldest" "${needs[-1]}" | sort -V | tail -n 1) != "${name}_$oldest" ]]; then
    echo "make_portable: needs ${needs[-1]}, which the oldest host lacks (${name}_$oldest):" >&2
    objdump -T "${files[@]}" | grep "\b${needs[-1]}\b" >&2
    bad=1
  fi
done <cmake/portable/oldest_host.versions
bytes=$(du -scb "${files[@]}" | tail -n 1 | cut -f 1)
echo "$folder: $(((bytes + 1048575) / 1048576)) MiB; needs ${needs[*]} and LibTorch $(cat cmake/libtorch.version)"
if ((bytes > most_mib * 1048576)); then
  echo "make_portable: more than $most_mib MiB" >&2
  bad=1
fi
exit $bad
