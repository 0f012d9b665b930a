# Sourced after setup.sh by the scripts that run third-party Python packages against the server. These scripts run in
# the root of the repository.

SKIPPED=77  # the exit code by which ctest recognizes a skipped test

# client_env NAME PACKAGE...: installs missing packages into the environment .cache/clients/NAME, and sets CLIENT_PYTHON
# to its Python. Prints a message and returns 1 if a package cannot be installed.
client_env() {
  local environment=.cache/clients/$1
  shift
  CLIENT_PYTHON=$PWD/$environment/bin/python
  if [ ! -x "$CLIENT_PYTHON" ] && ! python3 -m venv "$environment" >&2; then
    step "skipped: 'python3 -m venv $environment' failed: is python3-venv installed?"
    return 1
  fi
  "$CLIENT_PYTHON" -m pip install -q --disable-pip-version-check "$@" >&2 && return
  step "skipped: 'pip install $*' failed"
  return 1
}

# take_server [--smartkv PROGRAM] [ARGUMENT...]: sets SMARTKV to PROGRAM and REST to the other arguments. Without
# --smartkv, builds the program and fetches the default model. With it, exits with SKIPPED if there is no model.
take_server() {
  SMARTKV=build/release/smartkv
  if [ "${1:-}" = --smartkv ]; then
    SMARTKV=$2
    shift 2
    [ -e "$MODEL" ] || { step "skipped: $MODEL does not exist: run scripts/fetch_model.sh"; exit $SKIPPED; }
  else
    install_packages
    build release smartkv
    fetch_model
  fi
  REST=("$@")
}
