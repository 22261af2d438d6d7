#!/bin/bash
# Make .venv if it is absent or made by another Python. The first argument, if not empty, is the Python to use.
set -eo pipefail

supported='import sys; raise SystemExit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'

if [ -x .venv/bin/python ] && .venv/bin/python -c "$supported" 2>/dev/null; then
    exit 0
fi

for python in ${1:-python3 python3.13 python3.12 python3.11}; do
    if command -v "$python" >/dev/null && "$python" -c "$supported" 2>/dev/null; then
        echo "making .venv with $("$python" --version)"
        rm -rf .venv
        # Debian ships python3 without ensurepip unless python3-venv is installed.
        "$python" -m venv .venv && exit 0
        rm -rf .venv
        echo "error: '$python -m venv' failed; on Debian and Ubuntu: apt-get install python3-venv" >&2
        exit 1
    fi
done

echo "error: this needs Python 3.11, 3.12 or 3.13; found: $(python3 --version 2>&1 || echo none)." >&2
echo "Install one, or name it: make $(basename "${MAKECMDGOALS:-book}") PYTHON=/path/to/python3.12" >&2
exit 1
