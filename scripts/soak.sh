#!/usr/bin/env bash
# Puts a server under load for a long time with many kinds of requests at once, checks every answer, and writes
# docs/operate/soak.md.
#   scripts/soak.sh [--minutes 30] [--clients 64] [--kills 1] [--report docs/operate/soak.md]
# The exit code is 1 if a promise did not hold. scripts/soak.py --help explains the load and the promises.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

install_packages
build release smartkv
fetch_model
exec python3 scripts/soak.py --smartkv build/release/smartkv --model "$MODEL" "$@"
