#!/usr/bin/env bash
# Builds, checks and times the CUDA backend on a machine with a GPU, each step within its time limit, and prints one table at the end.
#
#   tests/device/run.sh [--bin DIR] [--log DIR] [STEP...]
#
# STEP: build, conformance, repeat, streams, places, close, ring, killed_writer, observe, bad_input, large, linear, linear_memory, sharded_conformance,
# vocab_parallel_group, vocab_parallel, vocab_parallel_rows, vocab_parallel_linear, pipeline_8b, memcheck, racecheck, initcheck, synccheck, bench, linear_bench,
# vocab_parallel_bench, vocab_parallel_shapes_bench, vocab_parallel_linear_bench; or tests, sanitize, all (default).
# --bin: binaries built elsewhere and liblossgauge.so.0, in one directory, instead of building here; the conformance suite that racecheck follows
# (LOSSGAUGE_CUDA_RACECHECK) lies in DIR/racecheck. --log: whole outputs, one file a step (default build/device/log). vocab_parallel and its benchmark look for
# libnccl.so.2 and use two GPUs if there are two. Beside this: python.sh, the Python package's tests; pipeline_8b.py, the step of an 8B model over all GPUs with a
# sidecar, Prometheus and Alertmanager watching.
#
# Building needs nvcc 13, CMake, ninja, GoogleTest and Highway (LOSSGAUGE_DEVICE_DEPS: a prefix where the last two are, if not installed).
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
tests=(conformance repeat streams places close ring killed_writer observe bad_input large linear linear_memory sharded_conformance vocab_parallel_group vocab_parallel vocab_parallel_rows vocab_parallel_linear pipeline_8b)
tools=(memcheck racecheck initcheck synccheck)
benches=(bench linear_bench vocab_parallel_bench vocab_parallel_shapes_bench vocab_parallel_linear_bench)
build=build/device bin='' log='' wanted=()
while (($# > 0)); do
  case $1 in
    --bin) bin=$(cd "$2" && pwd) || exit 2; shift ;;
    --log) log=$2; shift ;;
    tests) wanted+=("${tests[@]}") ;;
    sanitize) wanted+=("${tools[@]}") ;;
    all) wanted+=(build "${tests[@]}" "${tools[@]}" "${benches[@]}") ;;
    build) wanted+=("$1") ;;
    *) [[ " ${tests[*]} ${tools[*]} ${benches[*]} " == *" $1 "* ]] || { echo "no such step: $1" >&2; exit 2; }
       wanted+=("$1") ;;
  esac
  shift
done
((${#wanted[@]} > 0)) || wanted=(build "${tests[@]}" "${tools[@]}" "${benches[@]}")
log=${log:-$build/log}
mkdir -p "$log" && log=$(cd "$log" && pwd) || exit 1
export TMPDIR=/dev/shm  # a device can map rings of a memory file system only
export PATH=$PATH:/usr/local/cuda/bin
declare -A limit=([build]=3600 [conformance]=600 [repeat]=300 [streams]=300 [places]=60 [close]=60 [ring]=300 [killed_writer]=300 [observe]=60 [bad_input]=60 [large]=120
                  [linear]=120 [linear_memory]=60 [linear_bench]=300 [sharded_conformance]=300 [vocab_parallel_group]=300 [vocab_parallel]=120 [vocab_parallel_rows]=120 [vocab_parallel_linear]=60 [vocab_parallel_bench]=120 [vocab_parallel_shapes_bench]=120 [vocab_parallel_linear_bench]=120 [pipeline_8b]=240
                  [memcheck]=900 [racecheck]=1800 [initcheck]=900 [synccheck]=900 [bench]=900)
# Of the conformance suite, for sanitizers. initcheck does not see what cuBLASLt's kernels write, so that it would call every logit of the linear path unset: there,
# the suite fills the workspace with NaN instead.
small='Layout.B3*:Numerics.B1*:Signals.*'
linear='LinearCases.*:LinearCalls.*-LinearCases.B22_TheHeads*'  # that one has thousands of launches
# As for CTest, with the reasons: tests/kernels/CMakeLists.txt.
sharded='-Linear*:Signals.ObservedLogits*:Signals.EvaluationGoesToItsOwnBlock:Backward.AnOverflowingGradScaleIsCounted'
sharded+=':Denominators.B01_CountersDoNotDependOnTheCut:Denominators.B01_MicroBatchesAddToTheLossOfOneBatch:Denominators.B07_Chunks*'
races='LinearCases.B24*:LinearCases.B28*:LinearCases.B38*:LinearCalls.TheSameCall*'  # of these: racecheck takes seconds for each
rows=() failed=0

configure() {  # DIRECTORY RACECHECK
  cmake -S . -B "$1" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DLOSSGAUGE_CUDA=ON -DLOSSGAUGE_CUDA_ARCHITECTURES=90a-real -DLOSSGAUGE_CUDA_RACECHECK="$2" \
    -DLOSSGAUGE_BUILD_SERVER=OFF -DLOSSGAUGE_BUILD_BENCHMARKS=OFF -DLOSSGAUGE_WERROR=OFF ${LOSSGAUGE_DEVICE_DEPS:+-DCMAKE_PREFIX_PATH=$LOSSGAUGE_DEVICE_DEPS}
}
build_all() {
  local targets=()
  for name in "${tests[@]}"; do
    if [[ $name == pipeline_8b ]]; then targets+=(pipeline_8b); else targets+=("cuda_${name}_test"); fi
  done
  configure $build OFF && cmake --build $build --target cross_entropy_bench_cuda linear_bench_cuda vocab_parallel_bench_cuda vocab_parallel_shapes_bench_cuda \
    vocab_parallel_linear_bench_cuda "${targets[@]}" &&
    configure $build-racecheck ON && cmake --build $build-racecheck --target cuda_conformance_test
}
program() { if [[ $bin ]]; then echo "$bin/$1"; else echo "$build/bin/$1"; fi; }
sanitized() {  # TOOL PROGRAM FILTER
  local options=()
  # More barriers than these tools keep track of by themselves: what they say then is wrong. Many small launches run out of memory with as many.
  [[ $1 == racecheck || $1 == synccheck ]] && options=(--num-cuda-barriers "$([[ $3 == "$small" ]] && echo 65536 || echo 4096)")
  compute-sanitizer --tool "$1" "${options[@]}" --error-exitcode 9 "$2" --gtest_brief=1 --gtest_filter="$3"
}
# Tests of the linear path without replays: memcheck takes the parameters of kernels in a conditional node, which lie in memory of the driver's, for stray reads.
direct='Linear.MicroBatches*:Linear.SeveralStreams*'
# racecheck does not follow barriers that bytes from another CTA complete, nor what a warp hands on by one lane's arrival behind __syncwarp (SFULL in
# kernels/cuda/ring_layout.cuh, kBookArrivals in stage_layout.cuh): its reports of ring and stage kernels are expected, and must be gone in the variant that
# does the same in ways that it follows.
racecheck() {
  local variant=$build-racecheck/bin/cuda_conformance_test name filter binary code
  [[ $bin ]] && variant=$bin/racecheck/cuda_conformance_test
  for name in conformance linear observe; do
    filter='*' code=0 binary=$(program cuda_conformance_test)
    case $name in
      conformance) filter=$small ;;
      linear) filter=$races ;;
      *) binary=$(program "cuda_${name}_test") ;;
    esac
    sanitized racecheck "$binary" "$filter" >"$log/racecheck-$name" 2>&1 || code=$?
    ((code == 0 || code == 9)) || { cat "$log/racecheck-$name"; return $code; }
    if grep "Race reported" "$log/racecheck-$name" | grep -vE "(Ring|Stage)Kernel"; then return 9; fi
    echo "expected reports: $(grep -c "Race reported" "$log/racecheck-$name") ($name)"
  done
  echo "== the variant"
  sanitized racecheck "$variant" "$small" && sanitized racecheck "$variant" "$races"
}
step() {
  case $1 in
    build) if [[ $bin ]]; then echo 'SUMMARY: built elsewhere'; else build_all; fi ;;
    bench) "$(program cross_entropy_bench_cuda)" ;;
    linear_bench | vocab_parallel_bench | vocab_parallel_shapes_bench | vocab_parallel_linear_bench) "$(program "$1_cuda")" ;;
    sharded_conformance) "$(program cuda_sharded_conformance_test)" --gtest_brief=1 --gtest_filter="$sharded" ;;
    racecheck) racecheck ;;
    pipeline_8b)
      local gpus
      gpus=$(nvidia-smi -L | wc -l)
      for ranks in 1 2 4; do
        ((ranks <= gpus)) || break
        "$(program pipeline_8b)" --cuda --ranks=$ranks --ring_dir=/dev/shm/lossgauge-device-rings && "$(program pipeline_8b)" --cuda --ranks=$ranks --no_telemetry --check=false || return
      done ;;
    memcheck | initcheck | synccheck)
      sanitized "$1" "$(program cuda_conformance_test)" "$small" && sanitized "$1" "$(program cuda_observe_test)" '*' || return
      [[ $1 == initcheck ]] || { sanitized "$1" "$(program cuda_conformance_test)" "$linear" && sanitized "$1" "$(program cuda_linear_test)" "$direct"; } ;;
    *) "$(program "cuda_$1_test")" --gtest_brief=1 ;;
  esac
}
# What a step's output says in a line.
summary() {
  grep -hE '^\[  (PASSED|SKIPPED)|^\[  FAILED  \] [0-9]+ test|SUMMARY:|^expected reports|^record being|^[0-9]+ kills|^publish, GPU|failed their checksum|^against the whole head' "$1" |
    sed -E 's/^\[=+\] //; s/^\[ +([A-Z]+) +\]/\1/; s/^=+ //' | paste -sd ';' | sed 's/;/; /g' | cut -c1-600
}

if [[ ${LOSSGAUGE_DEVICE_STEP:-} ]]; then  # below `timeout`, which ends a whole step
  step "$LOSSGAUGE_DEVICE_STEP"
  exit
fi
[[ $bin ]] && export LD_LIBRARY_PATH=$bin${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
echo "machine: $(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | head -n 1), $(nvcc --version | sed -n 's/.*release //p'), $(uname -sr)"
for name in "${wanted[@]}"; do
  echo "== $name"
  begin=$SECONDS
  LOSSGAUGE_DEVICE_STEP=$name timeout -k 10 "${limit[$name]}" bash "tests/device/run.sh" ${bin:+--bin "$bin"} --log "$log" >"$log/$name" 2>&1
  code=$?
  result=ok
  if ((code == 124 || code == 137)); then result="over its limit of ${limit[$name]} s"; elif ((code != 0)); then result="FAILED ($code)"; fi
  [[ $result == ok ]] || failed=1
  if [[ " ${benches[*]} " == *" $name "* ]]; then cat "$log/$name"; elif ((code != 0)); then tail -n 40 "$log/$name"; fi
  rows+=("| $name | $result | $((SECONDS - begin)) | $(summary "$log/$name") |")
  [[ $name == build && $code != 0 ]] && break
done
echo
echo "| step | result | s | what it says |"
echo "| --- | --- | --- | --- |"
printf '%s\n' "${rows[@]}"
exit $failed
