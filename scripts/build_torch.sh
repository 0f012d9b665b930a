#!/usr/bin/env bash
# Builds build/release/smartkv with the module of train-gate and train-draft; installs LibTorch, which they need.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

install_packages
find_torch
build release smartkv smartkv_training
