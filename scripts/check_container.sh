#!/usr/bin/env bash
# Builds the images of docker/Dockerfile with a real Docker engine, and uses them as docs/operate/install.md and the README
# describe. Run it as root, or as a user who may use Docker:
#   scripts/check_container.sh [ARGUMENT...]      scripts/check_container.py --help lists the checks
# If no engine answers, it starts one. If no registry can be reached, it makes debian:bookworm-slim with debootstrap.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh
source scripts/clients_env.sh

install_packages docker.io docker-compose debootstrap
client_env openai openai==1.109.1 || exit $SKIPPED
fetch_model
exec "$CLIENT_PYTHON" scripts/check_container.py --model "$MODEL" "$@"
