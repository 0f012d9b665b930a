#!/usr/bin/env bash
# Builds the images of docker/Dockerfile with a real Docker engine, and uses them as docs/operate/install.md and the README say. As root,
# or as a user of Docker: scripts/check_container.sh [ARGUMENT...]; what it checks: scripts/check_container.py --help
# It starts an engine of its own where none answers, and makes debian:bookworm-slim by debootstrap where no registry is reached.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh
source scripts/clients_env.sh

install_packages docker.io docker-compose debootstrap
client_env openai openai==1.109.1 || exit $SKIPPED
fetch_model
exec "$CLIENT_PYTHON" scripts/check_container.py --model "$MODEL" "$@"
