#!/usr/bin/env bash
# For slurm.conf: EpilogSlurmctld=/usr/share/lossgauge/epilog-slurmctld.sh
#
# Runs as SlurmUser where slurmctld runs, at the end of every job. Of a job whose comment has lossgauge:RUN in it and that did not end well (its batch
# script may have been killed with it), it asks the daemon for the verdict on that attempt. RESTART: the job is requeued, but not for ever; HALT: it stays
# as it is, and `scontrol show job` says why. All else, and a daemon that is out of reach, changes nothing.
set -uo pipefail

# Slurm gives epilogs no search path.
export PATH=${LOSSGAUGE_PATH:-/usr/bin:/bin:/usr/local/bin}
export LOSSGAUGE_ADDRESS=${LOSSGAUGE_ADDRESS:-lossgauge-daemon:9789}
most_restarts=${LOSSGAUGE_MOST_RESTARTS:-5}

[[ ${SLURM_JOB_COMMENT:-} =~ (^|[[:space:],])lossgauge:([^[:space:],]+) ]] || exit 0
run=${BASH_REMATCH[2]}
[[ ${SLURM_JOB_EXIT_CODE2:-} == 0:0 ]] && exit 0

job=$(scontrol --oneliner show job "$SLURM_JOB_ID") || exit 0
# Whoever has requeued or held it already has decided.
[[ $job =~ JobState=(PENDING|REQUEUED|REQUEUE_HOLD|SPECIAL_EXIT) ]] && exit 0
restarts=0
[[ $job =~ Restarts=([0-9]+) ]] && restarts=${BASH_REMATCH[1]}

# Lost processes are noticed after a few seconds, so the verdict may need a moment. slurmctld kills epilogs only after PrologEpilogTimeout.
lossgaugectl verdict --wait --for=restart,halt,ended --attempt="$SLURM_JOB_ID.$restarts" --patience=30s --wait-timeout="${LOSSGAUGE_EPILOG_WAIT:-2m}" \
  --exit-codes=restart=93,halt=94 -- "$run" >/dev/null
case $? in
  93)
    if ((restarts < most_restarts)); then
      scontrol requeue "$SLURM_JOB_ID"
      lossgaugectl report --actor=epilog-slurmctld --attempt="$SLURM_JOB_ID.$restarts" -- "$run" RESTART >/dev/null || true
    else
      scontrol update JobId="$SLURM_JOB_ID" AdminComment="lossgauge: RESTART, but this was restart $most_restarts"
    fi
    ;;
  94) scontrol update JobId="$SLURM_JOB_ID" AdminComment="lossgauge: HALT, another start would not help" ;;
esac
exit 0
