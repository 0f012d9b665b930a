#!/usr/bin/env bash
# Compiles the CUDA sources of kernels/ and of policies with nvcc, without a GPU. Prints the registers and shared memory
# of each kernel:
#   scripts/check_cuda.sh [--no-install | --which]
# for sm_80, sm_90a and sm_100, or those in $CUDA_ARCHITECTURES.
# Exits with 1 if registers spill. nvcc is $NVCC, an installed one, or one from PyPI in .cache/nvcc (270 MB).
# --no-install: exit with 77 if there is no nvcc. --which: only print the path of nvcc.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

read -ra ARCHITECTURES <<<"${CUDA_ARCHITECTURES:-sm_80 sm_90a sm_100}"
PACKAGES=(nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88
          nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85)

private_nvcc() { compgen -G '.cache/nvcc/lib/python3*/site-packages/nvidia/cu13/bin/nvcc' || true; }

find_nvcc() {
  local found
  for found in "${NVCC:-}" "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc "$(private_nvcc)"; do
    if [ -n "$found" ] && [ -x "$found" ]; then
      echo "$found"
      return
    fi
  done
}

nvcc=$(find_nvcc)
if [ -z "$nvcc" ]; then
  if [ "${1:-}" = --no-install ]; then
    echo "skipped: no nvcc; scripts/check_cuda.sh installs one" >&2
    exit 77
  fi
  step "Installing nvcc into .cache/nvcc"
  python3 -m venv .cache/nvcc || fail "'python3 -m venv' failed: is python3-venv installed?"
  .cache/nvcc/bin/python -m pip install -q --disable-pip-version-check --no-deps "${PACKAGES[@]}" >&2 ||
    fail "'pip install ${PACKAGES[*]}' failed: check the network, or set NVCC to one that is installed"
  nvcc=$(private_nvcc)
  [ -n "$nvcc" ] || fail ".cache/nvcc holds no nvcc: remove it and run this script again"
fi

if [ "${1:-}" = --which ]; then
  echo "$nvcc"
  exit 0
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for architecture in "${ARCHITECTURES[@]}"; do
  step "Compiling for $architecture"
  echo "architecture $architecture" >>"$folder/report"
  for source in kernels/cuda/*.cu cache/policies/*/cuda/*.cu; do
    "$nvcc" -std=c++20 -O3 -I. -arch="$architecture" -Xptxas -v -c "$source" -o "$folder/object.o" 2>"$folder/one" ||
      { cat "$folder/one" >&2; fail "$source does not compile for $architecture"; }
    grep -E 'warning|error' "$folder/one" >&2 || true
    cat "$folder/one" >>"$folder/report"
  done
done
python3 scripts/check_cuda.py <"$folder/report"
