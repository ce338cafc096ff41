#!/bin/sh
# Builds everything and runs all tests, on a machine with or without a GPU. Installs what is missing
# first. Arguments go to ctest, e.g. -R loader.
set -eu
cd "$(dirname "$0")/.."

sh tools/packages.sh libgtest-dev libbenchmark-dev dataset-fashion-mnist
# The CUDA side takes as long to compile as everything else together, and without a driver its tests
# are skipped: PENSTOCK_CUDA=ON builds it anyway.
cuda="${PENSTOCK_CUDA:-OFF}"
[ -e /dev/nvidiactl ] && cuda="${PENSTOCK_CUDA:-AUTO}"
cmake -S . -B build/test -G Ninja -DCMAKE_BUILD_TYPE=Release -DPENSTOCK_WERROR=ON -DPENSTOCK_CUDA="$cuda"
cmake --build build/test
exec ctest --test-dir build/test --output-on-failure --timeout 600 -j "$(nproc)" "$@"
