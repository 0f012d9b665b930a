#!/usr/bin/env bash
# Looks for the faults that .clang-tidy lists. All sources of the program take about 15 minutes on 2 cores.
#   scripts/check_tidy.sh              checks the sources of the program, except those for CPU levels, CUDA and LibTorch.
#                                      clang 16 does not know all CPU features that cpu_level.cpp names.
#   scripts/check_tidy.sh FILE...      checks these
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

CLANG_TIDY=16.0.4

install_packages
make_venv
.venv/bin/python -m pip install -q --disable-pip-version-check "clang-tidy==$CLANG_TIDY" >&2 ||
  fail "'pip install clang-tidy==$CLANG_TIDY' failed: check the network"
step "Configuring build/tidy"  # one compile command for each source
mkdir -p build
cmake --preset release -B build/tidy -DSMARTKV_UNITY=OFF -DSMARTKV_TESTS=OFF -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON \
  >build/tidy.log 2>&1 || { cat build/tidy.log >&2; fail "CMake failed: see its message above"; }
if [ $# -eq 0 ]; then
  mapfile -t files < <(git ls-files 'cache/*.cpp' 'engine/*.cpp' 'json/*.cpp' 'kernels/*.cpp' 'lab/*.cpp' 'server/*.cpp' main.cpp |
    grep -v '/cuda/\|/torch/\|_torch\|^lab/training/\|^kernels/cpu/\|^kernels/cpu_level\.cpp$')
  set -- "${files[@]}"
fi
step "Checking $# sources"
printf '%s\0' "$@" | xargs -0 -P "$(nproc)" -n 4 .venv/bin/clang-tidy -p build/tidy --quiet ||
  fail "clang-tidy found the faults above"
