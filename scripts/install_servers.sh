#!/usr/bin/env bash
# Install the servers that the tests need and that no wheel brings: PostgreSQL 15, from Debian's packages.
# Where that is not possible (no root, no apt), the tests that need it are skipped, or fail if
# FENCEPOST_REQUIRE_SERVERS=1.
set -euo pipefail

pg15="${FENCEPOST_TEST_PG15_BIN:-/usr/lib/postgresql/15/bin}"
if [ -x "$pg15/postgres" ]; then
    exit 0
fi
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "PostgreSQL 15 is not in $pg15 and cannot be installed here (needs root and apt-get);" \
        "set FENCEPOST_TEST_PG15_BIN to its bin folder to run the tests on it too." >&2
    exit 0
fi
# The package would start a cluster of its own on port 5432, which nobody asked for.
mkdir -p /etc/postgresql-common
if [ ! -e /etc/postgresql-common/createcluster.conf ]; then
    echo "create_main_cluster = false" > /etc/postgresql-common/createcluster.conf
fi
apt-get update -q
DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends postgresql-15
