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

existing() {
    for path in "$@"; do
        [ -e "$path" ] && printf '%s ' "$path"
    done
}

export TILEFUSE_CACHE_DIR="${TILEFUSE_CACHE_DIR:-$PWD/.tilefuse/test-cache}"

stage ruff "$bin/ruff" check --output-format concise src tests benchmarks examples
stage mypy "$bin/mypy"
# One pytest run, its folders in order of cost, so that its closing line counts every test.
# shellcheck disable=SC2046
stage pytest "$bin/python" -m pytest --durations=25 $(existing \
    tests/house tests/unit tests/text tests/golden tests/laws tests/compile_only tests/mutation tests/end_to_end tests/gpu)

if [ -n "$failed" ]; then
    echo "failed stages:$failed"
    exit 1
fi
