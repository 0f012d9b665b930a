#!/usr/bin/env bash
# Drives the playground in headless Chromium, by keyboard. scripts/check_playground.py --help lists the checks.
#   scripts/check_playground.sh [--smartkv PROGRAM] [--screenshots FOLDER]
# Installs Debian's chromium and nginx, and playwright and axe into an environment of its own. With --smartkv nothing is
# built and no model is fetched.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh
source scripts/clients_env.sh

take_server "$@"
{ command -v chromium && [ -x /usr/sbin/nginx ]; } >/dev/null || install_packages chromium nginx-light
client_env playground playwright==1.65.2 axe-playwright-python==0.1.8 || exit $SKIPPED
exec "$CLIENT_PYTHON" scripts/check_playground.py --smartkv "$SMARTKV" --model "$MODEL" "${REST[@]}"
