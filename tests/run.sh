#!/usr/bin/env bash
# Builds lossgauge and runs every test that needs no GPU. On a fresh Debian 12 it first installs what is missing.
#
#   tests/run.sh             everything: cpu preset, then the sanitizer presets over what they cover, then the CUDA code for sm_80 and sm_90a
#   tests/run.sh --quick     the cpu preset without the slow, end-to-end and sanitizer runs
#   tests/run.sh --nightly   everything, every source compiled by itself, CUDA for all architectures and optimized, wrong values planted in the CPU kernels
#                            (tests/planted_faults), and each fuzzer for 60 s
#
# A build directory that is not there yet gets LOSSGAUGE_FAST_COMPILE (tests/fast_compile.cmake), except nightly.
#
# Ends with one line: N passed, N failed, N skipped.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

mode=all
case "${1:-}" in
  "") ;;
  --quick) mode=quick ;;
  --nightly) mode=nightly ;;
  *) echo "run.sh: unknown argument '$1'; one of --quick, --nightly, or none" >&2; exit 2 ;;
esac

deploy/setup.sh || exit 1
if [[ $mode == nightly ]]; then cuda=cuda; else cuda="cuda-check"; fi

passed=0 failed=0 skipped=0 niceness=0
ctest_of() {
  local preset=$1; shift
  # Two places a core: most tests take two, what mostly waits for processes takes one (PROCESSORS). What must be alone says so itself (RUN_SERIAL).
  ctest --test-dir "build/$preset" --output-on-failure --parallel $((2 * $(nproc))) "$@" 2>&1
}
run_ctest() {
  ctest_of "$@" | tee "build/$1/ctest.log"
  count_ctest "$1"
}
# ctest's own summary says how many failed out of how many; a test that skipped itself is listed apart.
count_ctest() {
  local preset=$1 log=build/$1/ctest.log total bad skips
  total=$(sed -n 's/.*tests failed out of \([0-9]*\)$/\1/p' "$log" | tail -n 1)
  bad=$(sed -n 's/.*, \([0-9]*\) tests failed out of .*/\1/p' "$log" | tail -n 1)
  # Whole tests, and single cases that skipped themselves inside a GoogleTest binary that ran.
  local cases
  cases=$(grep -ho '^\[  SKIPPED \] [A-Za-z0-9_.]*' "build/$preset/Testing/Temporary/LastTest.log" | sort -u | wc -l)
  skips=$(grep -c '\*\*\*Skipped' "$log")
  if [[ -z "$total" || "$total" -eq 0 ]]; then
    echo "run.sh: preset $preset ran no test" >&2
    failed=$((failed + 1))
    return
  fi
  failed=$((failed + bad)) skipped=$((skipped + skips + cases)) passed=$((passed + total - bad - skips))
}
build() {
  local preset=$1 fast=(); shift
  if [[ $mode == nightly ]]; then
    fast=(-DLOSSGAUGE_FAST_COMPILE=OFF)
  elif [[ ! -e build/$preset/CMakeCache.txt ]]; then
    fast=(-DLOSSGAUGE_FAST_COMPILE=ON)
  fi
  cmake --preset "$preset" "${fast[@]}" >"/tmp/lossgauge-configure-$$.log" 2>&1 || { cat "/tmp/lossgauge-configure-$$.log"; rm -f "/tmp/lossgauge-configure-$$.log"; return 1; }
  rm -f "/tmp/lossgauge-configure-$$.log"
  nice -n "$niceness" cmake --build --preset "$preset" "$@"
}
fail_build() { echo "run.sh: preset $1 does not build" >&2; failed=$((failed + 1)); }

if [[ $mode == quick ]]; then
  if build cpu; then run_ctest cpu -LE 'slow|e2e'; else fail_build cpu; fi
else
  # The tests of the cpu preset wait more than they compute: the other presets compile beside them and give way to them.
  cpu_tests=
  if build cpu; then
    echo "run.sh: the tests of preset cpu run while the next presets compile; their output follows then, and is in build/cpu/ctest.log"
    ctest_of cpu >build/cpu/ctest.log &
    cpu_tests=$! niceness=19
    trap 'kill "$cpu_tests" 2>/dev/null' EXIT
  else
    fail_build cpu
  fi
  # What carries the tsan label shares no lock with gRPC: Debian's gRPC is not instrumented, and its locks would be reported as races.
  sanitized=()
  for preset in tsan asan; do
    if build "$preset" --target "${preset}_tests"; then sanitized+=("$preset"); else fail_build "$preset"; fi
  done
  if command -v nvcc >/dev/null || [[ -x /usr/local/cuda/bin/nvcc ]]; then
    # Compiles the CUDA code; running it needs tests/device/run.sh and a GPU. No line of it is for sm_100 or sm_120 alone.
    if build "$cuda" --target lossgauge; then passed=$((passed + 1)); else fail_build "$cuda"; fi
  fi
  if [[ -n $cpu_tests ]]; then
    wait "$cpu_tests"
    trap - EXIT
    cat build/cpu/ctest.log
    count_ctest cpu
  fi
  for preset in "${sanitized[@]}"; do run_ctest "$preset" -L "$preset"; done
fi
if [[ $mode == nightly ]]; then
  [[ -f build/cpu/build.ninja ]] && run_ctest cpu --build-config nightly -L planted_faults
  if build fuzz; then
    for fuzzer in build/fuzz/bin/*_fuzzer; do
      corpus=tests/fuzz/corpus/$(basename "$fuzzer" _fuzzer)
      work=$(mktemp -d)
      if "$fuzzer" -max_total_time=60 -timeout=5 -rss_limit_mb=2048 "$work" "$corpus"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
      rm -rf "$work"
    done
  else
    fail_build fuzz
  fi
fi

echo "$passed passed, $failed failed, $skipped skipped"
[[ $failed -eq 0 && $passed -gt 0 ]]
