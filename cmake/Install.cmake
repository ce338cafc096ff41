# A relocatable tree: bin/penstock, lib/libpenstock.so and plugins, include/penstock, a CMake package.
