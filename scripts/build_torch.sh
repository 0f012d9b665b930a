#!/usr/bin/env bash
# Builds build/release/smartkv with the modules for train-gate, train-draft and `--backend torch`. Installs LibTorch,
# which the modules need.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

install_packages
find_torch
build release smartkv smartkv_training smartkv_torch_backend
