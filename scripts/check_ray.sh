#!/usr/bin/env bash
# Runs deploy/ray on a local Ray cluster of two nodes and checks sessions, streaming, autoscaling and the loss of a
# replica. Prints the cost of the proxy and the gain from a second replica. scripts/check_ray.py --help lists the
# checks.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh
source scripts/clients_env.sh

take_server "$@"
client_env ray -r deploy/ray/requirements.txt openai==1.109.1 || exit $SKIPPED
exec "$CLIENT_PYTHON" scripts/check_ray.py --smartkv "$SMARTKV" --model "$MODEL" "${REST[@]}"
