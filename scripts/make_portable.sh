#!/usr/bin/env bash
# A folder that runs where LibTorch's wheel is and none of Debian's packages are: vlmtrain, gpu_tests, the stand-ins for the
# CUDA libraries (vgpu/), and in lib/ the two small libraries that Debian has no static archives of.
#
#   scripts/make_portable.sh [FOLDER [BUILD]]     default: portable, and build/portable of the preset "portable"
#
# There, LibTorch's folder torch/ is looked for as FOLDER/torch (a link will do), then along LD_LIBRARY_PATH;
# scripts/first_gpu_hour.sh finds that of Python. Video files are not read (cmake/Portable.cmake); folders of frames are.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-portable}
build=${2:-build/portable}
most_mib=64

if [[ $build == build/portable ]]; then
  cmake --preset portable >/dev/null
  cmake --build --preset portable --target vlmtrain gpu_tests
fi
mkdir -p "$folder/vgpu" "$folder/lib"
strip -o "$folder/vlmtrain" "$build/vlmtrain"
strip -o "$folder/gpu_tests" "$build/tests/gpu_tests"
while read -r library; do
  strip --strip-unneeded -o "$folder/vgpu/$(basename "$library")" "$library"
done < <(find "$build/vgpu" -type f)

needed() { objdump -p "$1" | awk '$1 == "NEEDED" { print $2 }'; }
bad=0
for program in vlmtrain gpu_tests; do
  for library in $(needed "$folder/$program"); do
    case $library in
      libtorch_cpu.so | libc10.so | libstdc++.so.6 | libgcc_s.so.1 | libc.so.6 | libm.so.6 | ld-linux-x86-64.so.2) ;;
      libfmt.so.* | libspdlog.so.*) cp -L "$(ldconfig -p | awk -v name="$library" '$1 == name { print $NF; exit }')" "$folder/lib/$library" ;;
      *) echo "make_portable: $program needs $library, which another machine may lack" >&2; bad=1 ;;
    esac
  done
done
for file in "$folder"/vlmtrain "$folder"/gpu_tests "$folder"/vgpu/*; do
  path=$(objdump -p "$file" | awk '$1 == "RPATH" || $1 == "RUNPATH" { print $2 }')
  if [[ $path != '$ORIGIN/'* && $path != '$ORIGIN' ]]; then
    echo "make_portable: $file looks for libraries in ${path:-no folder}, not beside itself" >&2
    bad=1
  fi
done
newest() { objdump -T "$folder"/vlmtrain "$folder"/gpu_tests "$folder"/vgpu/* "$folder"/lib/* | grep -o "\b$1_[0-9.]*" | sort -Vu | tail -n 1; }
bytes=$(du -sb "$folder" | cut -f 1)
echo "$folder: $(((bytes + 1048575) / 1048576)) MiB; needs $(newest GLIBC), $(newest GLIBCXX), $(newest CXXABI) and LibTorch $(cat cmake/libtorch.version)"
if ((bytes > most_mib * 1048576)); then
  echo "make_portable: more than $most_mib MiB" >&2
  bad=1
fi
exit $bad
