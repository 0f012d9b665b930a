#!/usr/bin/env bash
# From a fresh Debian 12 machine to a running server: scripts/serve.sh [smartkv serve arguments]
# Without arguments it serves the default model, with the sampling that its card recommends, on http://127.0.0.1:8080.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

install_packages
build release smartkv
fetch_model
step "Starting build/release/smartkv serve $*"
config=(--config configs/default.json)
for argument in "$@"; do  # a model or a file of the user's own
  case $argument in --model | --model=* | --config | --config=*) config=() ;; esac
done
exec build/release/smartkv serve "${config[@]}" "$@"
