#!/usr/bin/env bash
# A program that runs where LibTorch's wheel is and none of Debian's packages are: the small libraries are linked statically.
#
#   scripts/make_portable.sh [FOLDER]     default: portable; at most 64 MiB, without LibTorch
#
# FOLDER gets vlmtrain, gpu_tests and the stand-ins for the CUDA libraries (vgpu/). There, LibTorch's folder torch/ is looked
# for as FOLDER/torch (a link will do) and then along LD_LIBRARY_PATH. Video files are left out: FFmpeg stands on a hundred
# libraries that Debian has no static archives of; folders of frames work.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-portable}

cmake --preset portable >/dev/null
cmake --build --preset portable --target vlmtrain gpu_tests
mkdir -p "$folder/vgpu"
for program in vlmtrain tests/gpu_tests; do
  strip -o "$folder/$(basename "$program")" "build/portable/$program"
done
for library in build/portable/vgpu/lib*.so.*; do
  strip --strip-unneeded -o "$folder/vgpu/$(basename "$library")" "$library"
done

# What is needed of the machine beside LibTorch.
bad=0
for program in vlmtrain gpu_tests; do
  while read -r library; do
    case $library in
      libtorch_cpu.so | libc10.so | libstdc++.so.6 | libgcc_s.so.1 | libc.so.6 | libm.so.6 | libgomp.so.1 | ld-linux-x86-64.so.2) ;;
      *) echo "make_portable: $program needs $library, which another machine may lack" >&2; bad=1 ;;
    esac
  done < <(objdump -p "$folder/$program" | awk '$1 == "NEEDED" { print $2 }')
done
newest() { objdump -T "$folder"/vlmtrain "$folder"/gpu_tests "$folder"/vgpu/* | grep -o "$1_[0-9.]*" | sort -Vu | tail -n 1; }
size=$(du -sb "$folder" | cut -f 1)
echo "$folder: $((size / 1024 / 1024)) MiB; needs $(newest GLIBC), $(newest GLIBCXX), $(newest CXXABI) and LibTorch $(cat cmake/libtorch.version)"
((size <= 64 * 1024 * 1024)) || { echo "make_portable: more than 64 MiB" >&2; bad=1; }
exit $bad
