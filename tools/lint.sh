#!/bin/sh
# clang-tidy over the C++ files that the last commit changed (or those since $1), with the flags of
# build/test.
set -eu
cd "$(dirname "$0")/.."

base="${1:-HEAD~1}"
git rev-parse -q --verify "$base" > /dev/null || exit 0
files=$(git diff --name-only --diff-filter=d "$base" -- '*.cpp' |
  grep -E '^(framework|data|models|trainers)/' | grep -v _plugin/ || true)
[ -z "$files" ] && exit 0
# shellcheck disable=SC2086
# The build's own warning flags are the compiler's; clang does not know all of them.
clang-tidy -p build/test --quiet --extra-arg=-Wno-unknown-warning-option $files
