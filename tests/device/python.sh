#!/usr/bin/env bash
# Runs the tests of client/python on a GPU, a process for each module, and prints one line for each.
#
#   LOSSGAUGE_LIBRARY=.../liblossgauge.so.0 LOSSGAUGE_CTL=.../lossgaugectl tests/device/python.sh [--log DIR] [MODULE...]
#
# PYTHON (default python3) needs torch 2 with CUDA. LOSSGAUGE_CTL may be what bundle.sh made. --log: whole outputs, a file for each module (default
# build/device/log).
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
log=build/device/log
if [[ ${1:-} == --log ]]; then
  log=$2
  shift 2
fi
mkdir -p "$log" && log=$(cd "$log" && pwd) || exit 1
for name in LOSSGAUGE_LIBRARY LOSSGAUGE_CTL; do
  [[ -e ${!name:-} ]] || { echo "$name: expected the path of a file, got '${!name:-}'" >&2; exit 2; }
done
modules=("$@")
if ((${#modules[@]} == 0)); then
  for file in tests/python/*_test.py; do modules+=("$(basename "$file" .py)"); done
fi
# A device can map rings of a memory file system only.
export TMPDIR=/dev/shm LOSSGAUGE_TEST_DEVICE=${LOSSGAUGE_TEST_DEVICE:-cuda} PYTHONPATH=$PWD/client/python PYTHONDONTWRITEBYTECODE=1
cd tests/python || exit 1
failed=0
echo "| module | result | s |"
echo "| --- | --- | --- |"
for module in "${modules[@]}"; do
  begin=$SECONDS
  timeout -k 10 "${LOSSGAUGE_MODULE_SECONDS:-180}" "${PYTHON:-python3}" -m unittest "$module" >"$log/python-$module" 2>&1
  code=$?
  said=$(grep -E '^(Ran |OK|FAILED|NO TESTS RAN)' "$log/python-$module" | paste -sd ' ')
  ((code == 124 || code == 137)) && said="over its time limit"
  ((code == 0)) || failed=1
  echo "| $module | ${said:-exit status $code} | $((SECONDS - begin)) |"
done
exit $failed
