#!/usr/bin/env bash
# Checks models by name with the real huggingface_hub (scripts/check_hub.py).
#   scripts/check_hub.sh [PROGRAM]    PROGRAM: build/release/smartkv unless given
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

HUGGINGFACE_HUB=2.4.0
program=${1:-build/release/smartkv}
[ -x "$program" ] || fail "$program is not built: run 'scripts/test.sh' once"
[ -x build/hub_env/bin/python ] || python3 -m venv build/hub_env
build/hub_env/bin/python -m pip install -q --disable-pip-version-check "huggingface_hub==$HUGGINGFACE_HUB" >&2 ||
  fail "'pip install huggingface_hub==$HUGGINGFACE_HUB' failed: check the network"
exec build/hub_env/bin/python scripts/check_hub.py "$program"
