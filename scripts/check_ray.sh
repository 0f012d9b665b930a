#!/usr/bin/env bash
# Runs deploy/ray on a local Ray cluster of two nodes: sessions, streaming, autoscaling, a replica that is killed; prints
# what the proxy costs and what a second replica gives. What it checks: scripts/check_ray.py --help
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh
source scripts/clients_env.sh

take_server "$@"
client_env ray -r deploy/ray/requirements.txt openai==1.109.1 || exit $SKIPPED
exec "$CLIENT_PYTHON" scripts/check_ray.py --smartkv "$SMARTKV" --model "$MODEL" "${REST[@]}"
