#!/bin/sh
# Runs a PostgreSQL server for tests: on a Unix socket, as an ordinary user, in a new folder.
#
#   server.sh BINARIES FOLDER [BUFFERS]
#
# BINARIES is the folder of `initdb` and `postgres`. BUFFERS is the size of shared_buffers. Prints `ready` once the server runs. Then each
# line of the standard input is a command: `kill` (SIGKILL), `pause` (SIGSTOP), `continue`, `start`,
# `disk` (a disk of 16 MiB at FOLDER/small; prints `no` without the right to mount it).
# The server ends with the standard input, so also if the test is killed, and removes the folder.
set -eu
binaries=$1
folder=$2
buffers=${3:-32MB}
run=
if [ "$(id -u)" = 0 ]; then
    if [ -z "${ENGRAM_NAMESPACE:-}" ] && unshare --mount true 2> /dev/null; then
        # Mounted disks end with the server.
        ENGRAM_NAMESPACE=1 exec unshare --mount "$0" "$@"
    fi
    # PostgreSQL refuses to run as root.
    chown nobody "$folder"
    run="setpriv --reuid=nobody --regid=nogroup --clear-groups"
fi
cd "$folder"

start() {
    # Files need not survive a power cut. They survive a killed server.
    $run "$binaries/postgres" -D "$folder/data" -k "$folder" -h '' -c fsync=off \
        -c full_page_writes=off -c max_connections=50 -c shared_buffers="$buffers" \
        -c maintenance_work_mem=256MB -c log_min_messages=fatal \
        >> "$folder/log" 2>&1 < /dev/null &
    server=$!
    for _ in $(seq 600); do
        if "$binaries/pg_isready" -q -h "$folder" -U engram; then return; fi
        # Processes of a killed server may still end.
        if ! kill -0 "$server" 2> /dev/null; then sleep 0.1; start; return; fi
        sleep 0.05
    done
    echo "the server did not start; see $folder/log" >&2
    exit 1
}

# Sends a signal to all processes of the server.
signal() {
    # shellcheck disable=SC2046
    kill "$1" "$server" $(ps -o pid= --ppid "$server") 2> /dev/null || true
}

stop() {
    kill -9 "$server" 2> /dev/null || true
    wait "$server" 2> /dev/null || true
}

trap 'signal -CONT; stop; rm -rf "$folder"' EXIT
$run "$binaries/initdb" -D "$folder/data" -U engram --auth=trust -E UTF8 --no-sync \
    --no-instructions > "$folder/log" 2>&1
start
echo ready
while read -r command; do
    answer=$command
    case "$command" in
    kill) stop ;;
    pause) signal -STOP ;;
    continue) signal -CONT ;;
    start) start ;;
    disk)
        mkdir small
        if [ -z "${ENGRAM_NAMESPACE:-}" ] \
            || ! mount -t tmpfs -o size=16m,mode=700,uid="$(id -u nobody)" tmpfs small; then
            answer=no
        fi
        ;;
    esac
    echo "$answer"
done
