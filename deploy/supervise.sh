#!/usr/bin/env bash
# Runs a training command and ends it when lossgauged's verdict on it is RESTART or HALT, with an exit code that a scheduler understands.
#
#   supervise.sh COMMAND [ARGUMENT...]
#
# Exit code: the command's own, or LOSSGAUGE_RESTART_CODE (93) or LOSSGAUGE_HALT_CODE (94) if a verdict ended it. A command that ends by itself is
# never second-guessed, and a lossgauged that is out of reach ends nothing. One supervisor a job is enough: the verdict is the job's.
#
#   LOSSGAUGE_RUN        the run's name, as the job gives it to its gauge
#   LOSSGAUGE_ATTEMPT    the attempt's name, likewise: until it is seen, the verdict is still the one that ended the attempt before
#   LOSSGAUGE_ADDRESS    the daemon (or, for a job on one node, the sidecar); default 127.0.0.1:9789
#   LOSSGAUGE_GRACE      seconds between SIGTERM and SIGKILL; default 60
#
# SIGTERM and SIGINT end the command (SIGTERM); SIGHUP, SIGUSR1 and SIGUSR2 are passed on to it.
set -uo pipefail

if (($# == 0)) || [[ -z ${LOSSGAUGE_RUN:-} || -z ${LOSSGAUGE_ATTEMPT:-} ]]; then
  echo "supervise.sh: usage: LOSSGAUGE_RUN=RUN LOSSGAUGE_ATTEMPT=ATTEMPT supervise.sh COMMAND [ARGUMENT...]" >&2
  exit 2
fi
restart=${LOSSGAUGE_RESTART_CODE:-93} halt=${LOSSGAUGE_HALT_CODE:-94} grace=${LOSSGAUGE_GRACE:-60}
# Before the command is there: what is no number would end this script later, in the middle of its work, and leave the command behind.
is_code() { [[ $1 =~ ^[0-9]{1,3}$ ]] && ((10#$1 >= 3 && 10#$1 <= 255)); }
if ! is_code "$restart" || ! is_code "$halt" || ((10#$restart == 10#$halt)); then
  echo "supervise.sh: LOSSGAUGE_RESTART_CODE and LOSSGAUGE_HALT_CODE: two exit codes from 3 to 255, not \"$restart\" and \"$halt\"" >&2
  exit 2
fi
if ! [[ $grace =~ ^[0-9]{1,6}$ ]]; then
  echo "supervise.sh: LOSSGAUGE_GRACE: whole seconds, not \"$grace\"" >&2
  exit 2
fi
restart=$((10#$restart)) halt=$((10#$halt)) grace=$((10#$grace))

wait_for_verdict() {
  local code said last=''
  while true; do
    { said=$(lossgaugectl verdict --wait --for=restart,halt --attempt="$LOSSGAUGE_ATTEMPT" --exit-codes="restart=$restart,halt=$halt" -- "$LOSSGAUGE_RUN" 2>&1 >&3); } 3>&1
    code=$?
    # Once, however often: this is the job's log.
    if [[ -n $said && $said != "$last" ]]; then echo "$said"; fi
    last=$said
    if ((code == restart || code == halt || code == 2 || code == 126 || code == 127)); then return "$code"; fi
    # Out of reach, or the run is not known yet: the job goes on, and we try again.
    sleep 5
  done
}

# Each in a process group of its own, so that a signal reaches all that it has started.
set -m
# Before the command is there: a signal must not end this script and leave the command behind.
command='' early=''
pass_on() { if [[ -n $command ]]; then kill -s "$1" -- "-$command" 2>/dev/null; else early=$1; fi; }
trap 'pass_on TERM' TERM INT
for signal in HUP USR1 USR2; do
  # shellcheck disable=SC2064  # the name of now
  trap "pass_on $signal" "$signal"
done
"$@" &
command=$!
if [[ -n $early ]]; then pass_on "$early"; fi
wait_for_verdict >&2 &
watcher=$!
stop_watcher() { kill -KILL -- "-$watcher" 2>/dev/null; wait "$watcher" 2>/dev/null; }

verdict=0
while kill -0 "$command" 2>/dev/null; do
  wait -n "$command" ${watcher:+"$watcher"}
  if [[ -n $watcher ]] && ! kill -0 "$watcher" 2>/dev/null; then
    wait "$watcher"
    verdict=$?
    watcher=
    if ((verdict == restart || verdict == halt)); then break; fi
    echo "supervise.sh: lossgaugectl cannot be run, or was used wrongly (see above); the command runs without supervision" >&2
  fi
done
if [[ -n $watcher ]]; then stop_watcher; fi

if ((verdict == 0 || (verdict != restart && verdict != halt))); then
  wait "$command"
  exit
fi
if ((verdict == restart)); then action=RESTART; else action=HALT; fi
echo "supervise.sh: ending the command: the verdict on $LOSSGAUGE_RUN is $action" >&2
kill -TERM -- "-$command" 2>/dev/null
for ((tenths = 0; tenths < grace * 10; ++tenths)); do
  kill -0 "$command" 2>/dev/null || break
  sleep 0.1
done
kill -KILL -- "-$command" 2>/dev/null
wait "$command" 2>/dev/null
# For the ledger; what is done is done if lossgauged cannot be told.
lossgaugectl report --actor=supervise.sh --attempt="$LOSSGAUGE_ATTEMPT" -- "$LOSSGAUGE_RUN" "$action" >&2 || true
exit "$verdict"
