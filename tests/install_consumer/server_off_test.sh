#!/usr/bin/env bash
# server_off_test.sh CMAKE SOURCE_DIR: LOSSGAUGE_BUILD_SERVER=OFF must not even look for what only the server needs.
set -euo pipefail
cmake=$1 source=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$cmake" -S "$source" -B "$scratch/build" -G Ninja -DLOSSGAUGE_BUILD_SERVER=OFF -DLOSSGAUGE_CUDA=OFF --trace --trace-redirect="$scratch/trace" \
  >"$scratch/log" 2>&1 || { cat "$scratch/log"; exit 1; }
server_only='grpc|protobuf|absl|spdlog|prometheus-cpp|httplib|sqlite3|yaml-cpp|openssl'
if grep -iE "\((${server_only})[ )]" "$scratch/trace" | grep -iE 'find_package|find_library|find_path|pkg_check_modules|pkg_search_module'; then
  echo "server_off_test: the lines above look for libraries of the server" >&2
  exit 1
fi
if grep -iE "^(${server_only})[a-z_0-9-]*(_dir|_include|_library)" "$scratch/build/CMakeCache.txt"; then
  echo "server_off_test: the cache entries above come from libraries of the server" >&2
  exit 1
fi
