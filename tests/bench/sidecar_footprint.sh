#!/bin/sh
# What a sidecar costs beside a job: CPU share, memory, descriptors, with 8 ranks at 100 steps/s (other numbers: RANKS, RATE, SECONDS).
#   sidecar_footprint.sh BIN_DIR
# Prints a line at the beginning, middle and end of the measured time, so that growth would show.
set -eu
bin=${1:?usage: sidecar_footprint.sh BIN_DIR (build/cpu/bin)}
ranks=${RANKS:-8} rate=${RATE:-100} seconds=${SECONDS_MEASURED:-60}
work=$(mktemp -d)
mkdir "$work/rings"
"$bin/lossgauged" sidecar --ring_dir="$work/rings" --state_dir="$work/state" --http_listen=127.0.0.1:0 --grpc_listen=127.0.0.1:0 \
  >"$work/log" 2>&1 &
sidecar=$!
"$bin/fake_job" --ring_dir="$work/rings" --ranks="$ranks" --rate="$rate" --steps=$(((seconds + 8) * rate)) &
job=$!
trap 'kill "$sidecar" "$job" 2>/dev/null || true; wait; rm -rf "$work"' EXIT

ticks() { awk '{print $14 + $15}' "/proc/$sidecar/stat"; }
sleep 4
begin=$(ticks)
for part in 1 2 3; do
  sleep $((seconds / 3))
  now=$(ticks)
  echo "$((part * seconds / 3)) s: CPU $(awk -v t=$((now - begin)) -v s=$((part * seconds / 3)) -v hz="$(getconf CLK_TCK)" \
    'BEGIN { printf "%.2f %%", 100 * t / hz / s }') of a core, $(grep VmRSS "/proc/$sidecar/status" | tr -s '\t ' ' '), of it $(
    grep RssShmem "/proc/$sidecar/status" | tr -s '\t ' ' ') and $(grep RssFile "/proc/$sidecar/status" | tr -s '\t ' ' '), $(
    find "/proc/$sidecar/fd" -mindepth 1 | wc -l) descriptors"
done
