#!/usr/bin/env bash
# Loads the default model's server for a long time with everything at once, checks every answer, and writes docs/operate/soak.md.
#   scripts/soak.sh [--minutes 30] [--clients 64] [--report docs/operate/soak.md]
# Exit code 1 when a promise did not hold. What it does: scripts/soak.py --help
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

install_packages
build release smartkv
fetch_model
exec python3 scripts/soak.py --smartkv build/release/smartkv --model "$MODEL" "$@"
