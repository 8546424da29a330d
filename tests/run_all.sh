#!/bin/sh
# Every check, cheap ones first. All stages run even when one fails; the exit status is non-zero if any did.
# Usage: VENV=.venv sh tests/run_all.sh
cd "$(dirname "$0")/.." || exit 1
bin="${VENV:-.venv}/bin"
failed=""

stage() {
    name="$1"
    shift
    echo "== $name"
    start=$(date +%s)
    "$@" || failed="$failed $name"
    echo "== $name: $(($(date +%s) - start)) s"
}

export TILEFUSE_CACHE_DIR="${TILEFUSE_CACHE_DIR:-$PWD/.tilefuse/test-cache}"

stage ruff "$bin/ruff" check --output-format concise src tests benchmarks examples
stage mypy "$bin/mypy"
if [ -n "$failed" ]; then
    echo "failed stages:$failed"
fi
# One list of tests for a process a core, its folders in order of cost; the closing line counts every test.
env PYTHONPATH=src "$bin/python" -m tests || failed="$failed tests"
[ -z "$failed" ]
