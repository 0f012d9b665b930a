# Sourced by the other scripts: functions that install missing packages, configure and build. The scripts run in the
# root of the repository. Each step prints what it does, and a step that fails prints what to do.

TORCH_VERSION=2.13.0
MODEL=models/SmolLM2-135M-Instruct.Q4_1.gguf

# coloured CODE TEXT: prints TEXT, in a colour if standard error is a terminal and NO_COLOR is not set.
coloured() {
  if [ -t 2 ] && [ -z "${NO_COLOR:-}" ]; then printf '\033[%sm%s\033[0m' "$1" "$2"; else printf '%s' "$2"; fi
}
step() { printf '%s\n' "$(coloured 1 "==> $*")" >&2; }
fail() { printf '%s %s\n' "$(coloured 31 error:)" "$*" >&2; exit 1; }

# install_packages [PACKAGE...]: installs the missing ones among the given Debian packages and those that the build
# needs.
install_packages() {
  local wanted=(build-essential cmake ninja-build ccache mold pkg-config ca-certificates python3 python3-venv
                libcpp-httplib-dev libssl-dev nlohmann-json3-dev libspdlog-dev libsentencepiece-dev libonig-dev libutf8proc-dev libpcre2-dev
                libcli11-dev libxxhash-dev libedit-dev libgtest-dev libgmock-dev "$@")
  local missing=() package
  for package in "${wanted[@]}"; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return
  step "Installing Debian packages: ${missing[*]}"
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || fail "not root and no sudo: as root, run 'apt-get install ${missing[*]}', then this script again"
    as_root=(sudo)
  fi
  "${as_root[@]}" apt-get update -q >&2 || fail "'apt-get update' failed: check the package sources and the network"
  DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -q --no-install-recommends "${missing[@]}" >&2 ||
    fail "'apt-get install ${missing[*]}' failed: see its message above"
}

# Makes the virtual environment .venv, unless it exists.
make_venv() {
  [ -x .venv/bin/python ] || python3 -m venv .venv || fail "'python3 -m venv .venv' failed: is python3-venv installed?"
}

# torch_prefix_of PYTHON: prints the CMake prefix of the LibTorch that this Python has; nothing if it does not have
# version TORCH_VERSION.
torch_prefix_of() {
  "$1" - "$TORCH_VERSION" 2>/dev/null <<'PYTHON' || true
import importlib.metadata, importlib.util, os, sys
version = importlib.metadata.version("torch").split("+")[0]
folder = os.path.join(importlib.util.find_spec("torch").submodule_search_locations[0], "share", "cmake")
if version == sys.argv[1] and os.path.exists(os.path.join(folder, "Torch", "TorchConfig.cmake")):
    print(folder)
PYTHON
}

# Sets CMAKE_PREFIX_PATH so that CMake finds LibTorch, which training, the torch backend and their tests need. Uses one
# in CMAKE_PREFIX_PATH, one that a Python has installed, or a private one, which it installs into .venv.
find_torch() {
  local folder
  install_packages libgloo-dev  # headers that LibTorch's c10d, used for tensor parallelism, includes
  for folder in ${CMAKE_PREFIX_PATH:+${CMAKE_PREFIX_PATH//[:;]/ }}; do
    if [ -e "$folder/Torch/TorchConfig.cmake" ] || [ -e "$folder/share/cmake/Torch/TorchConfig.cmake" ]; then return; fi
  done
  folder=$(torch_prefix_of python3)
  [ -n "$folder" ] || folder=$(torch_prefix_of .venv/bin/python)
  if [ -z "$folder" ]; then
    step "Installing LibTorch $TORCH_VERSION into .venv (about 200 MB)"
    make_venv
    .venv/bin/python -m pip install -q --disable-pip-version-check --no-deps "torch==$TORCH_VERSION" >&2 ||
      fail "'pip install torch==$TORCH_VERSION' failed: check the network, or set CMAKE_PREFIX_PATH to a LibTorch $TORCH_VERSION"
    folder=$(torch_prefix_of .venv/bin/python)
    [ -n "$folder" ] || fail ".venv holds no LibTorch $TORCH_VERSION with CMake files: remove .venv and run this script again"
  fi
  export CMAKE_PREFIX_PATH="$folder${CMAKE_PREFIX_PATH:+:$CMAKE_PREFIX_PATH}"
}

# build PRESET [TARGET...]: configures build/PRESET and builds the targets, or all targets if none are given.
build() {
  local preset=$1
  shift
  step "Configuring build/$preset"  # each time, because LibTorch may have been installed since the last time
  mkdir -p build
  cmake --preset "$preset" >"build/$preset.log" 2>&1 || { cat "build/$preset.log" >&2; fail "CMake failed: see its message above"; }
  step "Building build/$preset (minutes the first time)"
  cmake --build "build/$preset" ${1:+--target "$@"} >&2 || fail "the build failed: see the compiler's message above"
}

fetch_model() {
  scripts/fetch_model.sh >&2 || exit 1
}
