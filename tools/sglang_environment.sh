#!/usr/bin/env bash
# Prints an interpreter that can import SGLang's planner on a CPU, making its environment once.
#
# It sees what the project's environment has (torch, NumPy, transformers …) and adds what SGLang's
# modules import besides. SGLang itself is not installed: tests put the unpacked wheel of
# tools/sglang_wheel.sh on the path, and stand in for torchvision.
#
# Variables, all optional:
#   PYTHON          interpreter of the project's environment (.venv/bin/python)
#   PIP_ARGS        options of `pip install`
#   DSPARK_CACHE    where to keep it (~/.cache/dspark-calib)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-.venv/bin/python}
cache=${DSPARK_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/dspark-calib}
target=$cache/sglang-environment
packages="apache-tvm-ffi compressed-tensors dill einops ipython loguru openai orjson partial-json-parser
    pybase64 pyzmq sentencepiece setproctitle"

see_the_project() { # the project's environment may be another one than last time
    local own
    own=$("$target/bin/python" -c 'import site; print(site.getsitepackages()[0])')
    "$python" -c 'import site; print(site.getsitepackages()[0])' > "$own/project.pth"
}

if [ "$(cat "$target/complete" 2>/dev/null)" != "$packages" ]; then
    rm -rf "$target"
    "$python" -m venv "$target"
    see_the_project # before anything is installed, or pip brings another torch
    # shellcheck disable=SC2086  # lists of words
    "$target/bin/python" -m pip install --disable-pip-version-check --quiet ${PIP_ARGS:-} \
        $packages >&2 || {
        echo "sglang_environment: error: pip could not install what SGLang imports" >&2
        exit 1
    }
    printf '%s\n' "$packages" > "$target/complete"
fi
see_the_project
echo "$target/bin/python"
