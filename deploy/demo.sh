#!/usr/bin/env bash
# The whole path on one machine, without a GPU: trains a small language model on real text, lets a pathological document hit it (a spike that the
# z-loss absorbs), then a learning rate that is too high (a divergence); shows what lossgauge made of it, the alert that fired in a real
# Prometheus and Alertmanager, and the verdict that a scheduler would get.
#
#   deploy/demo.sh          tells the story, then keeps the status page up until Ctrl-C
#   deploy/demo.sh --once   exits at the end of the story: 0 if every part of it happened
#
# Ports on 127.0.0.1: 9788 page and metrics, 9789 gRPC, 9790 Prometheus, 9793 Alertmanager (LOSSGAUGE_DEMO_PORTS="a b c d" for others).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

once=no
case "${1:-}" in
  "") ;;
  --once) once=yes ;;
  *) echo "demo.sh: unknown argument '$1'; --once or none" >&2; exit 2 ;;
esac

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
note() { printf '  %s\n' "$*"; }
fail() { echo "demo.sh: $*; logs: $work" >&2; keep_logs=yes; exit 1; }

read -r http_port grpc_port prometheus_port alertmanager_port <<<"${LOSSGAUGE_DEMO_PORTS:-9788 9789 9790 9793}"
readonly run=demo api=http://127.0.0.1:$http_port prometheus=http://127.0.0.1:$prometheus_port
readonly alertmanager=http://127.0.0.1:$alertmanager_port
work=$(mktemp -d -t lossgauge-demo-XXXXXX)
keep_logs=no
pids=()
cleanup() {
  trap - EXIT INT TERM
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  wait 2>/dev/null || true
  [[ $keep_logs == yes ]] || rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

say "1. Set-up and build"
deploy/setup.sh
cmake --preset cpu >"$work/configure.log" 2>&1 || { cat "$work/configure.log"; exit 1; }
cmake --build --preset cpu --target lossgauged lossgaugectl train_text
bin=build/cpu/bin

for port in "$http_port" "$grpc_port" "$prometheus_port" "$alertmanager_port"; do
  if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then fail "port $port is taken; choose four others with LOSSGAUGE_DEMO_PORTS"; fi
done

start() {
  local name=$1; shift
  "$@" >"$work/$name.log" 2>&1 &
  pids+=($!)
}
# until_true SECONDS WHAT COMMAND...: runs the command until it succeeds.
until_true() {
  local limit=$1 what=$2; shift 2
  for ((i = 0; i < limit * 5; ++i)); do
    if "$@" 2>/dev/null; then return 0; fi
    sleep 0.2
  done
  fail "$what did not happen within $limit s"
}

say "2. Sidecar, Prometheus with the shipped rules, Alertmanager"
mkdir -m 0750 "$work/rings" "$work/checkpoints"
start lossgauged "$bin/lossgauged" sidecar --ring_dir="$work/rings" --state_dir="$work/state" \
  --http_listen="127.0.0.1:$http_port" --grpc_listen="127.0.0.1:$grpc_port"
cat >"$work/alertmanager.yml" <<YAML
route: {receiver: page, group_by: [run, alertname], group_wait: 0s, group_interval: 1s}
receivers: [{name: page}]
YAML
cat >"$work/prometheus.yml" <<YAML
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: ["$PWD/dashboards/rules/*.yml"]
alerting: {alertmanagers: [{static_configs: [{targets: ["127.0.0.1:$alertmanager_port"]}]}]}
scrape_configs: [{job_name: lossgauge, static_configs: [{targets: ["127.0.0.1:$http_port"]}]}]
YAML
start alertmanager prometheus-alertmanager --config.file="$work/alertmanager.yml" --storage.path="$work/alertmanager" \
  --web.listen-address="127.0.0.1:$alertmanager_port" --cluster.listen-address=
start prometheus prometheus --config.file="$work/prometheus.yml" --storage.tsdb.path="$work/prometheus" \
  --web.listen-address="127.0.0.1:$prometheus_port"
until_true 20 "lossgauged getting ready" curl -fsS -o /dev/null "$api/-/ready"
until_true 30 "Prometheus getting ready" curl -fsS -o /dev/null "$prometheus/-/ready"
until_true 30 "Alertmanager getting ready" curl -fsS -o /dev/null "$alertmanager/-/ready"
note "status page  $api/"
note "metrics      $api/metrics"
note "Prometheus   $prometheus/alerts"

say "3. Training on real text: two data-parallel ranks, z-loss on"
start train "$bin/train_text" --run="$run" --ring_dir="$work/rings" --ranks=2 --steps=1000000 --z_loss=1e-4 --step_ms=15 \
  --checkpoint_dir="$work/checkpoints" --checkpoint_every=100 \
  --fault=spike --fault_step=400 --then_fault=divergence --then_fault_step=700
steps() { curl -fsS "$api/api/v1/steps?run=$run&tail=${1:-1}"; }
step_reached() { steps | jq -e --argjson n "$1" '(.steps[0].step // "0" | tonumber) >= $n' >/dev/null; }
until_true 60 "the first steps" step_reached 20
note "$(steps 1 | jq -r '.steps[0] | "step \(.step): loss \(.lossNats*1000|round/1000) nats, perplexity \(.perplexity*100|round/100)"')"
until_true 120 "step 350" step_reached 350
note "$(steps 1 | jq -r '.steps[0] | "step \(.step): loss \(.lossNats*1000|round/1000) nats, perplexity \(.perplexity*100|round/100), \(.bitsPerByte*1000|round/1000) bits/byte, max|z| \(.maxAbsLogit*10|round/10)"')"

incident() { curl -fsS "$api/api/v1/incidents?run=$run" | jq -e -r "[.incidents[]? | select($1)][0] // empty"; }
say "4. A pathological document at step 400"
until_true 60 "the spike's detection" incident '.condition == "loss_spike"' >/dev/null
note "$(incident '.condition == "loss_spike"' | jq -r '.summary')"
note "verdict: $("$bin/lossgaugectl" verdict "$run" --address="127.0.0.1:$grpc_port" | head -n 1 || true)"
until_true 60 "the spike's recovery" incident '.condition == "loss_spike" and (.open | not)' >/dev/null
note "$(incident '.condition == "loss_spike"' | jq -r '"closed at step \(.lastStep): recovered by itself, no restart"')"

say "5. A learning rate that is too high at step 700"
verdict_is() { curl -fsS "$api/api/v1/verdict?run=$run" | jq -e --arg a "$1" '.action == $a' >/dev/null; }
until_true 180 "the verdict RESTART" verdict_is RESTART
note "$(incident '.condition == "divergence"' | jq -r '.summary')"
prometheus_fires() { curl -fsS "$prometheus/api/v1/alerts" | jq -e '[.data.alerts[] | select(.labels.run == "'"$run"'" and .state == "firing" and .labels.alertname == "'"$1"'")] | length > 0' >/dev/null; }
alertmanager_has() { curl -fsS "$alertmanager/api/v2/alerts" | jq -e '[.[] | select(.labels.run == "'"$run"'" and .labels.alertname == "'"$1"'")] | length > 0' >/dev/null; }
until_true 60 "alert LossgaugeDivergence in Prometheus" prometheus_fires LossgaugeDivergence
until_true 60 "alert LossgaugeDivergence in Alertmanager" alertmanager_has LossgaugeDivergence
note "firing in Prometheus and delivered to Alertmanager: LossgaugeDivergence"

say "6. What a scheduler gets"
set +e
"$bin/lossgaugectl" verdict "$run" --address="127.0.0.1:$grpc_port"
code=$?
set -e
note "exit code of lossgaugectl verdict: $code (20 = RESTART)"
[[ $code -eq 20 ]] || fail "lossgaugectl verdict gave exit code $code, not 20"

if [[ $once == yes ]]; then
  say "The story is complete."
  exit 0
fi
say "The status page stays up at $api/ until Ctrl-C."
while :; do sleep 3600 & wait $!; done
