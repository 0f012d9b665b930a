#!/usr/bin/env bash
# Tries docker/Dockerfile's runtime stage without a container engine: its packages in a bare Debian 12 made by
# debootstrap, the program and the model as the image has them, run with a read-only root as the image's user and
# without capabilities. Checks the sizes, the health check, an answer, and that SIGTERM ends it. As root:
#   scripts/check_container.sh [PROGRAM] [BASE]
# PROGRAM: build/release/smartkv. BASE: a root by `debootstrap --variant=minbase bookworm BASE`, made where it is
# missing.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

program=${1:-build/release/smartkv}
base=${2:-build/container-base}
port=18099
most_without_model=150 most_with_model=300  # MB

dockerfile=docker/Dockerfile
packages=$(sed -n 's/^ARG RUNTIME_PACKAGES="\(.*\)"$/\1/p' "$dockerfile")
user=$(sed -n 's/^USER //p' "$dockerfile")
[ -n "$packages" ] && [ -n "$user" ] || fail "$dockerfile: found no RUNTIME_PACKAGES or no USER"

if [ ! -e "$base/etc" ]; then
  command -v debootstrap >/dev/null || fail "debootstrap is missing: apt-get install debootstrap"
  step "Making a bare Debian in $base"
  debootstrap --variant=minbase bookworm "$base" >/dev/null
fi

folder=$(mktemp -d)
root=$folder/root server=
clean() {
  [ -z "$server" ] || kill -9 "$server" 2>/dev/null || true
  for place in "$folder/view/tmp" "$folder/view/proc" "$folder/view/dev" "$folder/view" "$root/dev" "$root/proc"; do
    ! mountpoint -q "$place" || umount "$place"
  done
  rm -rf --one-file-system "$folder"
}
trap clean EXIT
cp -a "$base" "$root"

step "Installing $packages"
# How this machine reaches its package sources.
cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
rm -f "$root/etc/apt/sources.list"
cp -r /etc/apt/sources.list /etc/apt/sources.list.d /etc/apt/apt.conf.d "$root/etc/apt/" 2>/dev/null || true
mkdir -p "$root/usr/share/keyrings" && cp -r /usr/share/keyrings/. "$root/usr/share/keyrings/"
mkdir -p "$root/etc/ssl/certs" && cp -L --remove-destination /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
mount --bind /dev "$root/dev"
mount -t proc proc "$root/proc"
chroot "$root" bash -c "apt-get update -q && apt-get install -y -q --no-install-recommends $packages" \
  >"$folder/apt.log" || { cat "$folder/apt.log"; fail "the packages of the runtime stage cannot be installed"; }
umount "$root/dev" "$root/proc"
rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/*
strip -o "$root/usr/local/bin/smartkv" "$program"
size() { du -sm --apparent-size "$root" | cut -f1; }
without=$(size)
mkdir -p "$root/models" && cp "$MODEL" "$root/models/model.gguf"
with=$(size)
step "Sizes: $without MB without a model, $with MB with the default one"
[ "$without" -le $most_without_model ] && [ "$with" -le $most_with_model ] ||
  fail "larger than $most_without_model and $most_with_model MB"

step "Running it: user $user, read-only root, no capabilities"
mkdir "$folder/view"
mount --bind "$root" "$folder/view"
mount -t proc proc "$folder/view/proc"
mount --bind /dev "$folder/view/dev"
mount -o remount,ro,bind "$folder/view"
mount -t tmpfs tmpfs "$folder/view/tmp"
# Root changes the root, then the image's user runs it, who has no capability and can gain none.
inside=(chroot "$folder/view" setpriv --reuid="${user%:*}" --regid="${user#*:}" --clear-groups --bounding-set=-all
        --no-new-privs env -i PATH=/usr/local/bin:/usr/bin:/bin)
! touch "$folder/view/written" 2>/dev/null || fail "the root can be written"
"${inside[@]}" smartkv serve --host 127.0.0.1 --port $port --model /models/model.gguf --weights bf16 --kv-cache-bytes 256MiB &
server=$!

# The image's own health check, on this port.
health=$(sed -n 's/^  "\(exec .*\)"\]$/\1/p' "$dockerfile" | sed "s/8080/$port/; s/\\\\\\\\/\\\\/g")
[ -n "$health" ] || fail "$dockerfile: found no health check"
for ((second = 0; ; ++second)); do
  "${inside[@]}" bash -c "$health" 2>/dev/null && break
  [ $second -lt 120 ] || fail "not healthy after 120 s"
  sleep 1
done
step "Healthy after $second s"
python3 - $port <<'PYTHON'
import json, sys, urllib.request
body = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0, "max_tokens": 16}
request = urllib.request.Request(f"http://127.0.0.1:{sys.argv[1]}/v1/chat/completions", json.dumps(body).encode(),
                                 {"Content-Type": "application/json"})
answer = json.load(urllib.request.urlopen(request, timeout=120))["choices"][0]["message"]["content"]
print(answer)
sys.exit("Paris" not in answer)
PYTHON
kill -TERM "$server"
wait "$server" || fail "SIGTERM ended it with code $?"
server=
! "${inside[@]}" bash -c "$health" 2>/dev/null || fail "the health check passes without a server"
step "All passed"
