#!/usr/bin/env bash
# Prints the folder of an unpacked SGLang wheel, fetching it once. Nothing of it is installed: the
# parity tests load its Sequential Temperature Scaling fitter and its readers by file.
#
# Variables, all optional:
#   PYTHON          interpreter whose pip fetches the wheel (.venv/bin/python)
#   PIP_ARGS        options of `pip download`
#   SGLANG_VERSION  release to compare with (0.5.23)
#   DSPARK_CACHE    where to keep it (~/.cache/dspark-calib)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-.venv/bin/python}
version=${SGLANG_VERSION:-0.5.23}
cache=${DSPARK_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/dspark-calib}
target=$cache/sglang-$version

if [ ! -d "$target/sglang" ]; then
    mkdir -p "$cache"
    work=$(mktemp -d "$cache/download.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    # shellcheck disable=SC2086  # a list of options
    "$python" -m pip download --disable-pip-version-check --quiet --no-deps --only-binary :all: \
        ${PIP_ARGS:-} --dest "$work" "sglang==$version" >&2 || {
        echo "sglang_wheel: error: pip could not download sglang==$version" >&2
        exit 1
    }
    "$python" -m zipfile -e "$work"/sglang-*.whl "$work/unpacked"
    rm -rf "$target"
    mv "$work/unpacked" "$target" # within one folder, so a reader never sees half of it
fi
echo "$target"
