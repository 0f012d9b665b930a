#!/usr/bin/env bash
# From a fresh Debian 12 machine to a running server: scripts/serve.sh [smartkv serve arguments]
# Without arguments it serves the default model on http://127.0.0.1:8080.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

install_packages
build release smartkv
fetch_model
step "Starting build/release/smartkv serve $*"
exec build/release/smartkv serve --config configs/default.json "$@"
