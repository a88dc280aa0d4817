#!/usr/bin/env bash
# Makes an authority and a certificate of a server with these names, valid for a year:
#
#   deploy/certificates.sh FOLDER NAME...
#
# FOLDER gets ca.crt (for `sslrootcert` in addresses), server.crt and server.key. The authority's key
# is deleted, so nobody can make more certificates with it.
set -euo pipefail
folder="${1:?usage: certificates.sh FOLDER NAME...}"
shift
: "${1:?usage: certificates.sh FOLDER NAME...}"
umask 077
mkdir -p "$folder"
names="$(printf ',DNS:%s' "$@")"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -days 365 -subj "/CN=Engram CA" \
    -addext "basicConstraints=critical,CA:TRUE" -addext "keyUsage=critical,keyCertSign" \
    -keyout "$work/ca.key" -out "$folder/ca.crt" 2>> "$work/log"
openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -subj "/CN=$1" \
    -keyout "$folder/server.key" -out "$work/server.csr" 2>> "$work/log"
printf 'subjectAltName=%s\nbasicConstraints=critical,CA:FALSE\nextendedKeyUsage=serverAuth\n' \
    "${names#,}" > "$work/extensions"
openssl x509 -req -in "$work/server.csr" -CA "$folder/ca.crt" -CAkey "$work/ca.key" \
    -CAserial "$work/serial" -CAcreateserial -days 365 -extfile "$work/extensions" \
    -out "$folder/server.crt" 2>> "$work/log"
echo "$folder: ca.crt, server.crt, server.key"
