# Sourced after setup.sh by the scripts that run other people's Python packages against the server. Run from the
# repository's root.

# client_env PACKAGE...: installs what is missing into a private environment, .cache/clients, and sets CLIENT_PYTHON.
# Returns 1, saying so, where a package cannot be had.
client_env() {
  local environment=.cache/clients
  CLIENT_PYTHON=$PWD/$environment/bin/python
  [ -x "$CLIENT_PYTHON" ] || python3 -m venv "$environment" || fail "'python3 -m venv $environment' failed: is python3-venv installed?"
  "$CLIENT_PYTHON" -m pip install -q --disable-pip-version-check "$@" >&2 && return
  step "skipped: 'pip install $*' failed"
  return 1
}
