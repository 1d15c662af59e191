#!/usr/bin/env bash
# Install the servers that the tests need and that no wheel brings, from Debian's packages: PostgreSQL 15, PgBouncer,
# RabbitMQ, Redis and Mosquitto; spin with a C compiler, for the lab's model; and faketime, whose library gives a process
# a clock of its own. Where that is not possible (no root, no apt), the tests that need them are skipped, or fail if
# FENCEPOST_REQUIRE_SERVERS=1.
set -euo pipefail

pg15="${FENCEPOST_TEST_PG15_BIN:-/usr/lib/postgresql/15/bin}"
missing=()
need() {  # package, then the files and commands of which one must be there
    local package=$1 each
    shift
    for each in "$@"; do
        if [ -x "$each" ] || command -v "$each" >/dev/null; then
            return
        fi
    done
    missing+=("$package")
}
need postgresql-15 "$pg15/postgres"
need pgbouncer /usr/sbin/pgbouncer pgbouncer
need rabbitmq-server /usr/lib/rabbitmq/bin/rabbitmq-server
need redis-server redis-server
need mosquitto /usr/sbin/mosquitto mosquitto
need spin spin
need gcc gcc
need libc6-dev gcc  # its headers
need faketime faketime
if [ ${#missing[@]} -eq 0 ]; then
    exit 0
fi
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "missing, and not to be installed here without root and apt-get: ${missing[*]};" \
        "set FENCEPOST_TEST_PG15_BIN to the bin folder of a PostgreSQL 15, put the other servers on the PATH." >&2
    exit 0
fi
# The packages would start servers of their own on their usual ports, which nobody asked for.
mkdir -p /etc/postgresql-common
if [ ! -e /etc/postgresql-common/createcluster.conf ]; then
    echo "create_main_cluster = false" > /etc/postgresql-common/createcluster.conf
fi
apt-get update -q
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' > "$policy"
    chmod +x "$policy"
    trap 'rm -f "$policy"' EXIT
fi
DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}"
