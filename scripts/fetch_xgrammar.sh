#!/usr/bin/env bash
# Fetches the sources of XGrammar (Apache-2.0), the library for constrained sampling, from their PyPI package into
# third_party/xgrammar, and checks their hash. Then applies scripts/xgrammar.patch, which lets a caller bound the
# library's work. CMake runs this script when it configures.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

version=0.1.33
sha256=8dbe5fc3d76651ab1fac7a68fc2a118b885fa0ec7189927fb6e0dce0081aea99
target=third_party/xgrammar
patched="$version with patch $(sha256sum scripts/xgrammar.patch | cut -c1-16)"

[ "$(cat $target/VERSION 2>/dev/null)" = "$patched" ] && exit 0
step "Fetching XGrammar $version (2 MB of sources)"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
make_venv
.venv/bin/python -m pip download -q --disable-pip-version-check --no-deps --no-binary xgrammar -d "$folder" \
  "xgrammar==$version" >&2 || fail "'pip download xgrammar==$version' failed: check the network, or see scripts/fetch_xgrammar.sh"
archive=$folder/xgrammar-$version.tar.gz
echo "$sha256  $archive" | sha256sum --check --status ||
  fail "the package xgrammar==$version contains unexpected sources: SHA-256 is not $sha256"
tar xzf "$archive" -C "$folder"
patch -s -p1 -d "$folder/xgrammar-$version" <scripts/xgrammar.patch || fail "scripts/xgrammar.patch does not apply to xgrammar $version"
rm -rf "$target"
mkdir -p "$target"
for part in LICENSE NOTICE cpp include 3rdparty/picojson 3rdparty/dlpack; do
  mkdir -p "$target/$(dirname $part)"
  mv "$folder/xgrammar-$version/$part" "$target/$part"
done
echo "$patched" >"$target/VERSION"
