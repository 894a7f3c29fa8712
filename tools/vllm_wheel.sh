#!/usr/bin/env bash
# Prints the folder of an unpacked vLLM wheel, fetching it once. Nothing of it is installed: the
# contract tests read the source that the plugin patches, and load the modules that a CPU can.
# The wheel is some 340 MB of compiled kernels; its Python files alone are kept.
#
# Variables, all optional:
#   PYTHON        interpreter whose pip fetches the wheel (.venv/bin/python)
#   PIP_ARGS      options of `pip download`
#   VLLM_VERSION  release to compare with (0.33.0)
#   DSPARK_CACHE  where to keep it (~/.cache/dspark-calib)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-.venv/bin/python}
version=${VLLM_VERSION:-0.33.0}
cache=${DSPARK_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/dspark-calib}
target=$cache/vllm-$version

if [ ! -d "$target/vllm" ]; then
    mkdir -p "$cache"
    work=$(mktemp -d "$cache/download.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    # shellcheck disable=SC2086  # a list of options
    "$python" -m pip download --disable-pip-version-check --quiet --no-deps --only-binary :all: \
        ${PIP_ARGS:-} --dest "$work" "vllm==$version" >&2 || {
        echo "vllm_wheel: error: pip could not download vllm==$version" >&2
        exit 1
    }
    "$python" - "$work"/vllm-*.whl "$work/unpacked" <<'UNPACK'
import sys
import zipfile

with zipfile.ZipFile(sys.argv[1]) as wheel:
    wanted = [n for n in wheel.namelist() if n.endswith(".py") or n.endswith("/METADATA")]
    wheel.extractall(sys.argv[2], wanted)
UNPACK
    rm -rf "$target"
    mv "$work/unpacked" "$target" # within one folder, so a reader never sees half of it
fi
echo "$target"
