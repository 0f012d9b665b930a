#!/usr/bin/env bash
# Follows the last stage of docker/Dockerfile without a container engine: its instructions in a bare Debian 12 made by debootstrap,
# with a program that was built here. Then runs it with a read-only root as the image's user, without capabilities, and checks
# sizes, rights, the health check, answers under presets, users of group 0, and the end by SIGTERM. As root:
#   scripts/check_container.sh [PROGRAM] [BASE]
# PROGRAM: build/release/smartkv. BASE: a root by `debootstrap --variant=minbase bookworm BASE`, made where it is
# missing. The stages that compile are not tried.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

program=${1:-build/release/smartkv}
base=${2:-build/container-base}
port=18099
most=330  # MB, with the default model and its draft

if [ ! -e "$base/etc" ]; then
  command -v debootstrap >/dev/null || fail "debootstrap is missing: apt-get install debootstrap"
  step "Making a bare Debian in $base"
  debootstrap --variant=minbase bookworm "$base" >/dev/null
fi

folder=$(mktemp -d)
root=$folder/root view=$folder/view server=
clean() {
  [ -z "$server" ] || kill -9 "$server" 2>/dev/null || true
  for place in "$view/models/model.gguf" "$view/cache" "$view/tmp" "$view/proc" "$view/dev" "$view" "$root/dev" "$root/proc"; do
    ! mountpoint -q "$place" || umount "$place"
  done
  rm -rf --one-file-system "$folder"
}
trap clean EXIT
cp -a "$base" "$root"
mkdir -p "$folder/build/licences" && cp third_party/xgrammar/LICENSE "$folder/build/licences/xgrammar"
strip -o "$folder/build/smartkv" "$program"

# How this machine reaches its package sources.
cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
rm -f "$root/etc/apt/sources.list"
cp -r /etc/apt/sources.list /etc/apt/sources.list.d /etc/apt/apt.conf.d "$root/etc/apt/" 2>/dev/null || true
mkdir -p "$root/usr/share/keyrings" && cp -r /usr/share/keyrings/. "$root/usr/share/keyrings/"
mkdir -p "$root/etc/ssl/certs" && cp -L --remove-destination /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
mount --bind /dev "$root/dev"
mount -t proc proc "$root/proc"

arguments=() environment=() entry=() command=() health=() user= labels=
words() { python3 -c 'import json, sys; print("\n".join(json.loads(sys.argv[1])))' "$1"; }
copied() {  # where a file of another stage lies here
  case $1 in
    /smartkv/build/release/*) echo "$folder/build/${1##*/}" ;;
    /smartkv/licences) echo "$folder/build/licences" ;;
    /smartkv/models/*) echo "models/${1##*/}" ;;
    *) fail "docker/Dockerfile: COPY of $1: scripts/check_container.sh does not know where it lies" ;;
  esac
}
while IFS=$'\t' read -r kind rest; do
  case $kind in
    ARG) arguments+=("$(eval echo "$rest")") ;;
    ENV) eval "environment+=($rest)" ;;
    RUN)
      step "RUN ${rest:0:100}"
      chroot "$root" env -i PATH=/usr/local/bin:/usr/local/sbin:/usr/bin:/bin:/usr/sbin:/sbin "${arguments[@]}" sh -c "$rest" \
        >"$folder/run.log" 2>&1 || { cat "$folder/run.log"; fail "RUN $rest"; }
      ;;
    COPY)
      from=
      if [[ $rest == --from=* ]]; then from=1 rest=${rest#* }; fi
      read -ra paths <<<"$rest"
      target=${paths[-1]}
      for path in "${paths[@]:0:${#paths[@]}-1}"; do
        source=${from:+$(copied "$path")}
        source=${source:-$path}
        if [ -d "$source" ]; then
          mkdir -p "$root$target" && cp -r "$source/." "$root$target/"
        else
          mkdir -p "$root$(dirname "${target}x")" && cp "$source" "$root$target"
        fi
      done
      ;;
    USER) user=$rest ;;
    WORKDIR) mkdir -p "$root$rest" ;;
    LABEL) labels=$rest ;;
    HEALTHCHECK) mapfile -t health < <(words "${rest#*CMD }") ;;
    ENTRYPOINT) mapfile -t entry < <(words "$rest") ;;
    CMD) mapfile -t command < <(words "$rest") ;;
    EXPOSE | STOPSIGNAL) ;;
    *) fail "docker/Dockerfile: $kind: scripts/check_container.sh does not follow it" ;;
  esac
done < <(python3 scripts/dockerfile_stage.py docker/Dockerfile "")
umount "$root/dev" "$root/proc"
[ -n "$user" ] && [ ${#health[@]} -gt 0 ] && [ ${#entry[@]} -gt 0 ] && [ ${#command[@]} -gt 0 ] ||
  fail "docker/Dockerfile: found no USER, HEALTHCHECK, ENTRYPOINT or CMD"

size=$(du -sm --apparent-size "$root" | cut -f1)
step "Size: $size MB"
[ "$size" -le $most ] || fail "larger than $most MB"
[ -z "$(find "$root" -xdev -type f -perm /6000)" ] || fail "programs with setuid or setgid: $(find "$root" -xdev -type f -perm /6000)"
[ -z "$(find "$root/var/lib/apt/lists" "$root/var/cache/apt" "$root/var/log" -type f)" ] || fail "the package manager left files"
for file in configs/default.json drafts/smollm2-135m-instruct/draft.safetensors; do
  [ -e "$root/usr/share/smartkv/$file" ] || fail "/usr/share/smartkv/$file is missing"
done
[ -n "$(ls "$root/usr/share/doc/smartkv")" ] || fail "no texts of licences"
for label in title description version revision created; do
  [[ $labels == *org.opencontainers.image.$label=* ]] || fail "no label org.opencontainers.image.$label"
done

mkdir "$view"
mount --bind "$root" "$view"
mount -t proc proc "$view/proc"
mount --bind /dev "$view/dev"
mount -o remount,ro,bind "$view"
mount -t tmpfs tmpfs "$view/tmp"
! touch "$view/written" 2>/dev/null || fail "the root can be written"

# inside USER VARIABLE=VALUE... -- COMMAND...: root changes the root, then that user runs it, who has no capability and can gain none.
inside() {
  local as=$1 variables=()
  shift
  while [ "$1" != -- ]; do variables+=("$1"); shift; done
  shift
  exec chroot "$view" setpriv --reuid="${as%:*}" --regid="${as#*:}" --clear-groups --bounding-set=-all --no-new-privs \
    env -i PATH=/usr/local/bin:/usr/bin:/bin "${environment[@]}" SMARTKV_HOST=127.0.0.1 SMARTKV_PORT=$port SMARTKV_KV_CACHE_BYTES=256MiB \
    "${variables[@]}" "$@"
}
healthy() { (inside "$user" -- "${health[@]}" "$@") >/dev/null 2>&1; }
# start USER VARIABLE=VALUE... -- ARGUMENTS...; no arguments: the image's.
start() {
  local variables=() as=$1
  shift
  while [ "$1" != -- ]; do variables+=("$1"); shift; done
  shift
  [ $# -gt 0 ] || set -- "${command[@]}"
  (inside "$as" "${variables[@]}" -- "${entry[@]}" "$@") 2>"$folder/server.log" >/dev/null &
  server=$!
  for ((second = 0; ; ++second)); do
    healthy && break
    kill -0 "$server" 2>/dev/null && [ $second -lt 120 ] || { cat "$folder/server.log"; fail "not healthy after $second s: $*"; }
    sleep 1
  done
}
stop() {
  kill -TERM "$server"
  wait "$server" || { cat "$folder/server.log"; fail "SIGTERM ended it with code $?"; }
  server=
}
ask() {  # FIELDS as JSON
  python3 - $port "$1" <<'PYTHON'
import json, sys, urllib.request
body = {"model": "SmolLM2-135M-Instruct", "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "temperature": 0, "max_tokens": 16, **json.loads(sys.argv[2])}
request = urllib.request.Request(f"http://127.0.0.1:{sys.argv[1]}/v1/chat/completions", json.dumps(body).encode(),
                                 {"Content-Type": "application/json"})
try:
    answer = json.load(urllib.request.urlopen(request, timeout=120))["choices"][0]["message"]["content"]
except urllib.error.HTTPError as error:
    sys.exit(f"{sys.argv[2]}: {error.code}: {error.read().decode()}")
print(sys.argv[2], answer)
sys.exit("" if "Paris" in answer else "expected Paris")
PYTHON
}

step "The image's command: user $user, read-only root, no capabilities"
start "$user" --
step "Healthy after $second s"
healthy --live || fail "it is ready and does not live"
ask '{}'
step "Every preset of policies, and the policy of gates"
for policy in full balanced compact tiny bounded endless gated_eviction; do ask "{\"kv_cache\": \"$policy\"}"; done
stop
! healthy || fail "the health check passes without a server"

for preset in laptop server long_context low_memory; do
  step "Arguments of a user's own: serve --preset $preset"
  start "$user" -- serve --preset $preset
  ask '{}'
  stop
done

step "The draft of the image"
start "$user" SMARTKV_SPECULATIVE=draft SMARTKV_DRAFT_MODEL=/usr/share/smartkv/drafts/smollm2-135m-instruct/draft.safetensors --
ask '{}'
stop

step "Another name for the model, as Kubernetes mounts it"
touch "$root/models/model.gguf"  # a place for it
mount --bind models/SmolLM2-135M-Instruct.Q4_1.gguf "$view/models/model.gguf"
start "$user" SMARTKV_MODEL=/models/model.gguf --
for policy in bounded endless tiny gated_eviction; do
  model=$(python3 -c "import json, urllib.request; print(json.load(urllib.request.urlopen('http://127.0.0.1:$port/v1/models'))['data'][0]['id'])")
  [ "$model" != model ] || fail "the model is named after its file"
  ask "{\"model\": \"$model\", \"kv_cache\": \"$policy\"}"
done
stop

step "A user of group 0, with a volume for computed prompts"
mount -t tmpfs tmpfs "$view/cache" -o "$(stat -c 'uid=%u,gid=%g,mode=%a' "$root/cache")"
start 123456:0 SMARTKV_PREFIX_CACHE_DIR=/cache --
python3 -c 'print("{\"max_tokens\": 1, \"messages\": [{\"role\": \"user\", \"content\": \"" + "one two three " * 300 + "What is the capital of France? Answer: Paris\"}]}")' >"$folder/long.json"
curl -sf "http://127.0.0.1:$port/v1/chat/completions" -H 'Content-Type: application/json' -d "@$folder/long.json" >/dev/null
stop
[ -n "$(find "$view/cache" -name '*.kv' -user 123456)" ] || fail "no computed prompt in /cache"
umount "$view/cache"

step "A directory for computed prompts that cannot be written"
start "$user" SMARTKV_PREFIX_CACHE_DIR=/usr/share --
grep -q "prefix_cache_dir: expected a directory that can be written to" "$folder/server.log" || fail "no line in the log"
ask '{}'
stop
step "All passed"
