#!/bin/sh
# From a bare Debian or Ubuntu machine to a trained model: installs what is missing, builds, and trains
# a small CNN on the 60,000 images of Fashion-MNIST with the batch that the machine likes best.
# Arguments go to `penstock train`, e.g. --set train.epochs=1.
set -eu
cd "$(dirname "$0")/.."

sh tools/packages.sh dataset-fashion-mnist
cuda="${PENSTOCK_CUDA:-OFF}"
[ -e /dev/nvidiactl ] && cuda="${PENSTOCK_CUDA:-AUTO}"
cmake -S . -B build/demo -G Ninja -DCMAKE_BUILD_TYPE=Release -DPENSTOCK_CUDA="$cuda" \
  -DPENSTOCK_TESTS=OFF -DPENSTOCK_BENCHMARKS=OFF -DPENSTOCK_EXAMPLES=OFF
cmake --build build/demo
exec build/demo/bin/penstock train configs/fashion_mnist_cnn.yaml --auto-batch "$@"
