# Sourced after setup.sh by the scripts that run other people's Python packages against the server. Run from the
# repository's root.

SKIPPED=77  # the exit code that ctest takes for a skipped test

# client_env NAME PACKAGE...: installs what is missing into an environment of NAME's own, .cache/clients/NAME, and sets
# CLIENT_PYTHON. Returns 1, saying so, where a package cannot be had.
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

# take_server [--smartkv PROGRAM] [ARGUMENT...]: sets SMARTKV to that program, or builds it and fetches the default model;
# REST: the other arguments. Without a model for the program that is given, everything is skipped.
take_server() {
  SMARTKV=build/release/smartkv
  if [ "${1:-}" = --smartkv ]; then
    SMARTKV=$2
    shift 2
    [ -e "$MODEL" ] || { step "skipped: $MODEL is not there: run scripts/fetch_model.sh"; exit $SKIPPED; }
  else
    install_packages
    build release smartkv
    fetch_model
  fi
  REST=("$@")
}
