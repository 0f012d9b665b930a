#!/usr/bin/env bash
# Renders deploy/kubernetes with kubectl (offline) and validates it with the schemas of PyPI's kubernetes-validate. It
# has no schemas for custom resources (InferencePool, HTTPRoute), so these are only rendered and listed.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh

command -v kubectl >/dev/null || fail "kubectl is missing"
venv=.cache/kubernetes
if [ ! -x $venv/bin/kubernetes-validate ]; then
  step "Installing kubernetes-validate into $venv"
  python3 -m venv $venv
  $venv/bin/pip install -q --disable-pip-version-check kubernetes-validate
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for overlay in deploy/kubernetes/base deploy/kubernetes/inference_pool; do
  step "$overlay"
  kubectl kustomize "$overlay" >"$folder/all.yaml"
  $venv/bin/python - "$folder" <<'PYTHON'
import sys, yaml
documents = list(yaml.safe_load_all(open(f"{sys.argv[1]}/all.yaml")))
custom = [d for d in documents if d["apiVersion"].split("/")[0].endswith("networking.k8s.io")]
with open(f"{sys.argv[1]}/known.yaml", "w") as file:
    yaml.safe_dump_all([d for d in documents if d not in custom], file)
labels = {d["kind"]: d for d in documents}["Deployment"]["spec"]["template"]["metadata"]["labels"]
for document in documents:
    spec = document["spec"]
    selector = spec.get("selector", {})
    for key, value in selector.get("matchLabels", selector).items():
        assert labels.get(key) == value, f"{document['kind']} selects no pod of the deployment: {selector}"
    if document in custom:
        print(f"{document['kind']} {document['metadata']['name']}: rendered, not validated")
PYTHON
  $venv/bin/kubernetes-validate --strict "$folder/known.yaml"
done
