#!/usr/bin/env bash
# Makes the certificates of the tests anew. Needs openssl. The keys are for these tests alone.
set -euo pipefail
cd "$(dirname "$0")"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
key() { openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1" -quiet; }
touch "$work/index"
cat > "$work/ca.cnf" << EOF
[ca]
default_ca = ca
database = $work/index
new_certs_dir = $work
rand_serial = yes
default_md = sha256
policy = policy
unique_subject = no
[policy]
commonName = supplied
[server]
subjectAltName = DNS:localhost
EOF
for name in own other; do
    key "$work/$name.key"
    openssl req -x509 -new -key "$work/$name.key" -subj "/CN=$name" -days 36500 -out "$name.pem"
done
key server.key
openssl req -new -key server.key -subj /CN=localhost -out "$work/request"
certificate() { # name, last day
    openssl ca -batch -notext -config "$work/ca.cnf" -extensions server -cert own.pem \
        -keyfile "$work/own.key" -startdate 20200101000000Z -enddate "$2" -in "$work/request" -out "$1.pem"
}
certificate valid 20991231000000Z
certificate expired 20241231000000Z
