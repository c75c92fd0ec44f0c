#!/usr/bin/env bash
# Builds, checks and times the CUDA backend on a machine with a GPU, and prints one table.
#
#   tests/device/run.sh [all|build|conformance|sanitize|bench]
#
# Needs nvcc 13, CMake, ninja, GoogleTest and Highway (LOSSGAUGE_DEVICE_DEPS: a prefix where the last two are, if not installed).
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
what=${1:-all}
build=build/device
export TMPDIR=/dev/shm  # a device can map rings of a memory file system only
export PATH=$PATH:/usr/local/cuda/bin
run() { [[ $what == all || $what == "$1" ]]; }

echo "machine: $(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | head -n 1), $(nvcc --version | sed -n 's/.*release //p'), $(uname -sr)"
cmake -S . -B $build -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DLOSSGAUGE_CUDA=ON -DLOSSGAUGE_CUDA_ARCHITECTURES=90a-real \
  -DLOSSGAUGE_BUILD_SERVER=OFF -DLOSSGAUGE_BUILD_BENCHMARKS=OFF -DLOSSGAUGE_WERROR=OFF ${LOSSGAUGE_DEVICE_DEPS:+-DCMAKE_PREFIX_PATH=$LOSSGAUGE_DEVICE_DEPS} >/tmp/lossgauge-device-configure.log 2>&1 || { cat /tmp/lossgauge-device-configure.log; exit 1; }
tests=(conformance repeat bad_input observe ring streams killed_writer)
targets=("${tests[@]/#/cuda_}")
cmake --build $build --target cross_entropy_bench_cuda "${targets[@]/%/_test}" || exit 1
failed=0
if run conformance; then
  for test in "${tests[@]}"; do timeout 300 "$build/bin/cuda_${test}_test" || { echo "cuda_${test}_test failed: $?"; failed=1; }; done
fi
if run sanitize; then
  for tool in memcheck racecheck initcheck synccheck; do
    echo "== compute-sanitizer $tool"
    compute-sanitizer --tool $tool --error-exitcode 9 $build/bin/cuda_conformance_test --gtest_filter='Layout.B3*:Numerics.B1*:Signals.*' >"$build/$tool.log" 2>&1
    code=$?
    # racecheck does not follow barriers that are partly completed by bytes from another CTA: see SFULL in kernels/cuda/ring_layout.cuh.
    if [[ $tool == racecheck && $code == 9 ]]; then grep "Race reported" "$build/$tool.log" | grep -v "RingKernel.*RingShape<.*, (int)[23]," && failed=1
    elif [[ $code != 0 ]]; then failed=1; fi
    tail -n 3 "$build/$tool.log"
  done
fi
if run bench; then $build/bin/cross_entropy_bench_cuda || failed=1; fi
exit $failed
