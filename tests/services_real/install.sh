#!/bin/sh
# Install what the services tests start, where it is missing (Debian, Ubuntu); with the argument chromium that too.
set -eu
as_root=""
[ "$(id -u)" = 0 ] || as_root="sudo"
if ! ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 && ! command -v initdb >/dev/null; then
    $as_root apt-get update
    DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y --no-install-recommends postgresql
fi
if [ "${1:-}" = chromium ] && ! command -v chromium >/dev/null; then
    $as_root apt-get update
    DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y --no-install-recommends chromium
fi
python="${PYTHON:-python3}"
"$python" -c "import psycopg" 2>/dev/null || "$python" -m pip install "psycopg[binary]"
