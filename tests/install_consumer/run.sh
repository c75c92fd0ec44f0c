#!/usr/bin/env bash
# run.sh CMAKE BUILD_DIR: installs the library of this build into a scratch prefix, moves the prefix, and builds and runs a C project against it.
set -euo pipefail
cmake=$1 build=$2
source=$(cd "$(dirname "$0")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
for component in library development; do "$cmake" --install "$build" --component "$component" --prefix "$scratch/first" >/dev/null; done
mv "$scratch/first" "$scratch/prefix" # an installed tree must not know where it was installed
"$cmake" -S "$source" -B "$scratch/build" -G Ninja -DCMAKE_PREFIX_PATH="$scratch/prefix" >"$scratch/log" || { cat "$scratch/log"; exit 1; }
"$cmake" --build "$scratch/build" >"$scratch/log" || { cat "$scratch/log"; exit 1; }
"$scratch/build/consumer" "$scratch/rings"
ls "$scratch"/rings/*.steps >/dev/null
