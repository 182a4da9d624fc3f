#!/usr/bin/env bash
# Installs everything that vlmtrain needs to build and run on Debian 12: system packages with apt, LibTorch from PyPI's
# torch wheel into a cache folder. Safe to run again: installed components are not changed.
#
#   scripts/setup.sh                 packages, LibTorch, and Arrow for data sets in Parquet
#   scripts/setup.sh --tests         also a browser, for the tests of the run report, and huggingface_hub, for those of
#                                    downloads; without them these tests are skipped
#   scripts/setup.sh --nightly       also the dependencies of the fuzz targets
#   scripts/setup.sh --print-libtorch   print the folder that holds torch/ and nvidia/, install nothing
#   scripts/setup.sh --print-arrow      print the folder that holds pyarrow/, install nothing
#   scripts/setup.sh --print-nvcc       print the folder that holds nvidia/cu13/bin/nvcc, install nothing
#   scripts/setup.sh --print-huggingface-hub   print the folder that holds huggingface_hub/, install nothing
#
# VLMTRAIN_CACHE (default: $XDG_CACHE_HOME/vlmtrain or ~/.cache/vlmtrain) is the folder of all that is not from apt.
set -euo pipefail
cd "$(dirname "$0")/.."

torch_version=$(cat cmake/libtorch.version)
cache=${VLMTRAIN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/vlmtrain}
libtorch=$cache/libtorch-$torch_version
arrow_version=$(cat cmake/parquet.version)
arrow=$cache/arrow-$arrow_version
nvcc_version=$(cat cmake/nvcc.version)
nvcc=$cache/nvcc-$nvcc_version
huggingface_hub_version=2.4.0  # the version whose cache vlmtrain writes
huggingface_hub=$cache/huggingface_hub-$huggingface_hub_version

case ${1:-} in
  '' | --tests | --nightly) ;;
  --print-libtorch) echo "$libtorch"; exit 0 ;;
  --print-arrow) echo "$arrow"; exit 0 ;;
  --print-nvcc) echo "$nvcc"; exit 0 ;;
  --print-huggingface-hub) echo "$huggingface_hub"; exit 0 ;;
  *) echo "setup: $1: unknown option; see the head of scripts/setup.sh" >&2; exit 2 ;;
esac

packages=(
  g++ cmake ninja-build ccache clang-format clang-tidy pkg-config git ca-certificates
  libyaml-cpp-dev libcli11-dev libspdlog-dev libfmt-dev nlohmann-json3-dev libgtest-dev libbenchmark-dev
  libpcre2-dev libutf8proc-dev libjpeg62-turbo-dev libpng-dev zlib1g-dev libwebp-dev libtiff-dev libheif-dev libnifti2-dev
  libcurl4-openssl-dev libssl-dev
  libavformat-dev libavcodec-dev libavutil-dev libswscale-dev
  python3 python3-venv python3-pip python3-numpy python3-pil
)
[[ ${1:-} == --tests || ${1:-} == --nightly ]] && packages+=(chromium)
[[ ${1:-} == --nightly ]] && packages+=(clang libclang-rt-14-dev)
missing=()
for package in "${packages[@]}"; do
  [[ $(dpkg-query -W -f='${Status}' "$package" 2>/dev/null) == *'ok installed'* ]] || missing+=("$package")
done
if ((${#missing[@]})); then
  as_root=()
  if [[ $(id -u) -ne 0 ]]; then
    command -v sudo >/dev/null || { echo "setup: not root and no sudo; install with apt: ${missing[*]}" >&2; exit 1; }
    as_root=(sudo)
  fi
  echo "setup: installing ${#missing[@]} Debian packages: ${missing[*]}"
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

if [[ ! -f $libtorch/.complete ]]; then
  echo "setup: fetching LibTorch $torch_version and the CUDA libraries that it requires into $libtorch"
  mkdir -p "$cache"
  partial=$(mktemp -d "$cache/libtorch-partial.XXXXXX")
  trap 'rm -rf "$partial"' EXIT
  # The wheels of torch's metadata that C++ needs at run time: the CUDA wheels, not the Python-only packages.
  /usr/bin/python3 -m pip install --quiet --no-input --disable-pip-version-check --root-user-action=ignore --no-compile --no-deps \
    --target "$partial" "torch==$torch_version"
  mapfile -t cuda_wheels < <(/usr/bin/python3 scripts/cuda_requirements.py "$partial"/torch-*.dist-info/METADATA)
  /usr/bin/python3 -m pip install --quiet --no-input --disable-pip-version-check --root-user-action=ignore --no-compile \
    --target "$partial" "${cuda_wheels[@]}"
  touch "$partial/.complete"
  rm -rf "$libtorch"
  mv "$partial" "$libtorch"
  trap - EXIT
fi

# torch/ imports in Python with this package alone; tests compare Muon with torch.optim.Muon.
if [[ ! -f $libtorch/typing_extensions.py ]]; then
  /usr/bin/python3 -m pip install --quiet --no-input --disable-pip-version-check --root-user-action=ignore --no-compile --no-deps \
    --target "$libtorch" "typing_extensions>=4.10" ||
    echo "setup: typing_extensions was not installed; the test that needs it will be skipped" >&2
fi

# Only the wheel's libraries and headers are used. Without it, everything except Parquet works.
if [[ ! -f $arrow/.complete ]]; then
  echo "setup: fetching Arrow $arrow_version into $arrow"
  partial=$(mktemp -d "$cache/arrow-partial.XXXXXX")
  trap 'rm -rf "$partial"' EXIT
  if /usr/bin/python3 -m pip install --quiet --no-input --disable-pip-version-check --root-user-action=ignore --no-compile --no-deps \
    --target "$partial" "pyarrow==$arrow_version"; then
    touch "$partial/.complete"
    rm -rf "$arrow"
    mv "$partial" "$arrow"
  else
    rm -rf "$partial"
    echo "setup: Arrow cannot be downloaded; vlmtrain is built without Parquet; run scripts/setup.sh again for it" >&2
  fi
  trap - EXIT
fi

# CUDA's compiler, for vlmtrain's custom kernels. Without it, ATen's kernels are used.
if [[ ! -f $nvcc/.complete ]]; then
  echo "setup: fetching nvcc $nvcc_version into $nvcc"
  partial=$(mktemp -d "$cache/nvcc-partial.XXXXXX")
  trap 'rm -rf "$partial"' EXIT
  if /usr/bin/python3 -m pip install --quiet --no-input --disable-pip-version-check --root-user-action=ignore --no-compile --no-deps \
    --target "$partial" "nvidia-cuda-nvcc==$nvcc_version" "nvidia-nvvm==$nvcc_version" "nvidia-cuda-crt==$nvcc_version" \
    nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85; then
    touch "$partial/.complete"
    rm -rf "$nvcc"
    mv "$partial" "$nvcc"
  else
    rm -rf "$partial"
    echo "setup: nvcc cannot be downloaded; vlmtrain is built without custom kernels; run scripts/setup.sh again for them" >&2
  fi
  trap - EXIT
fi

# The reference of tests/hub/oracle_test.py, with the packages that it requires.
if [[ ${1:-} == --tests || ${1:-} == --nightly ]] && [[ ! -f $huggingface_hub/.complete ]]; then
  echo "setup: fetching huggingface_hub $huggingface_hub_version into $huggingface_hub"
  partial=$(mktemp -d "$cache/huggingface_hub-partial.XXXXXX")
  trap 'rm -rf "$partial"' EXIT
  if /usr/bin/python3 -m pip install --quiet --no-input --disable-pip-version-check --root-user-action=ignore --no-compile \
    --target "$partial" "huggingface_hub==$huggingface_hub_version"; then
    touch "$partial/.complete"
    rm -rf "$huggingface_hub"
    mv "$partial" "$huggingface_hub"
  else
    rm -rf "$partial"
    echo "setup: huggingface_hub cannot be downloaded; the test that needs it will be skipped; run scripts/setup.sh --tests again for it" >&2
  fi
  trap - EXIT
fi
echo "setup: ready; LibTorch $torch_version is in $libtorch"
