#!/bin/sh
# Builds everything and runs all tests, on a machine with or without a GPU. Installs what is missing
# first. Arguments go to ctest, e.g. -R loader.
set -eu
cd "$(dirname "$0")/.."

sh tools/packages.sh libgtest-dev libbenchmark-dev dataset-fashion-mnist
cmake -S . -B build/test -G Ninja -DCMAKE_BUILD_TYPE=Release -DPENSTOCK_WERROR=ON
cmake --build build/test
exec ctest --test-dir build/test --output-on-failure --timeout 600 -j "$(nproc)" "$@"
