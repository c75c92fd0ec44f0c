#!/usr/bin/env bash
# Installs what lossgauge needs to build, test and run its demo on Debian 12, and nothing that is already there.
#
#   deploy/setup.sh            everything (build, tests, demo)
#   deploy/setup.sh --build    only what building the library and the server needs
#
# Debian starts Prometheus and Alertmanager as services on all interfaces the moment they are installed. A policy-rc.d
# that answers "not allowed" stands for the length of the installation, so that this script opens no port.
set -euo pipefail

readonly BUILD_PACKAGES=(
  g++ cmake ninja-build ccache pkg-config python3 gzip
  libgrpc++-dev libgrpc-dev protobuf-compiler-grpc protobuf-compiler libprotobuf-dev
  libabsl-dev libspdlog-dev prometheus-cpp-dev libcpp-httplib-dev libssl-dev libsnappy-dev libsqlite3-dev
  libarchive-dev libyaml-cpp-dev rapidjson-dev libhwy-dev libeigen3-dev libsystemd-dev zlib1g-dev
)
readonly TEST_PACKAGES=(
  libgtest-dev libgmock-dev libbenchmark-dev clang spin
  prometheus prometheus-alertmanager chromium
  python3-pip python3-venv python3-jsonschema python3-torch python3-numpy libopenblas0 python3-grpcio python3-protobuf python3-yaml
  jq curl openssl procps strace util-linux shellcheck yamllint systemd man-db file dpkg-dev lintian
  golang-go golang-github-masterminds-sprig-dev golang-gopkg-yaml.v3-dev
)

wanted=("${BUILD_PACKAGES[@]}")
if [[ "${1:-}" != "--build" ]]; then wanted+=("${TEST_PACKAGES[@]}"); fi
# Node may come from another source than Debian, whose npm package would then conflict with it.
command -v node >/dev/null || wanted+=(nodejs)
command -v npm >/dev/null || wanted+=(npm)

missing=()
for package in "${wanted[@]}"; do
  status=$(dpkg-query -W -f='${Status}' "$package" 2>/dev/null || true)
  [[ "$status" == "install ok installed" ]] || missing+=("$package")
done
if [[ ${#missing[@]} -eq 0 ]]; then exit 0; fi

as_root=()
if [[ $(id -u) -ne 0 ]]; then
  command -v sudo >/dev/null || { echo "setup.sh: missing packages: ${missing[*]}; run as root, or install sudo" >&2; exit 1; }
  as_root=(sudo)
fi

echo "setup.sh: installing ${#missing[@]} packages: ${missing[*]}" >&2
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
  printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
  "${as_root[@]}" chmod 0755 "$policy"
  trap '"${as_root[@]}" rm -f "$policy"' EXIT
fi
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
