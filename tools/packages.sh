#!/bin/sh
# Installs what a build needs on Debian or Ubuntu; elsewhere says what is missing. Used by demo.sh and
# test.sh. Usage: tools/packages.sh [extra package...]
set -eu

packages="g++ cmake ninja-build pkg-config python3 libdnnl-dev ocl-icd-opencl-dev libtbb-dev
libyaml-cpp-dev libspdlog-dev libfmt-dev libcli11-dev nlohmann-json3-dev zlib1g-dev
libturbojpeg0-dev libjpeg62-turbo-dev libpng-dev libxxhash-dev $*"

if ! command -v dpkg-query > /dev/null 2>&1; then
  echo "This script installs Debian and Ubuntu packages, and this system has none." >&2
  echo "Install the equivalents of these, then run cmake --workflow --preset cpu:" >&2
  echo "$packages" >&2
  exit 2
fi

missing=""
for p in $packages; do
  # Ubuntu calls the JPEG headers libjpeg-turbo8-dev.
  if [ "$p" = libjpeg62-turbo-dev ] && dpkg-query -W -f '${Status}' libjpeg-turbo8-dev 2> /dev/null |
      grep -q "ok installed"; then
    continue
  fi
  dpkg-query -W -f '${Status}' "$p" 2> /dev/null | grep -q "ok installed" || missing="$missing $p"
done
[ -z "$missing" ] && exit 0

as_root=""
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo > /dev/null 2>&1; then
    echo "These packages are missing, and installing them needs root:$missing" >&2
    exit 2
  fi
  as_root="sudo"
fi
echo "Installing:$missing" >&2
$as_root apt-get update -q >&2 || true
# shellcheck disable=SC2086
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $missing >&2
