#!/usr/bin/env bash
# Takes a fresh Debian 12 machine to a running server: installs, builds, and serves.
#   scripts/serve.sh [smartkv serve arguments]
# Without arguments it serves the default model on http://127.0.0.1:8080, with the sampling that the model card
# recommends.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

install_packages
build release smartkv
fetch_model
step "Starting build/release/smartkv serve $*"
config=(--config configs/default.json)
for argument in "$@"; do  # the user's own model or config replaces the default config
  case $argument in --model | --model=* | --config | --config=*) config=() ;; esac
done
exec build/release/smartkv serve "${config[@]}" "$@"
