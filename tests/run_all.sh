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
# mypy runs on one core while the test processes read their files; what it says is printed when it ends, long before the closing line.
mypy_output=$(mktemp)
(
    failed=""
    stage mypy "$bin/mypy" >"$mypy_output" 2>&1
    cat "$mypy_output"
    rm -f "$mypy_output"
    [ -z "$failed" ] || { echo "failed stage:$failed"; exit 1; }
) &
mypy_process=$!
# One list of tests for a process a core, its folders in order of cost; the closing line counts every test.
env PYTHONPATH=src "$bin/python" -m tests || failed="$failed tests"
wait "$mypy_process" || failed="$failed mypy"
[ -z "$failed" ]
