#!/usr/bin/env bash
# For slurm.conf: TaskProlog=/usr/share/lossgauge/task-prolog.sh
#
# Runs as the job's user before each of its tasks, which then have what it prints as "export NAME=value" in their environment. Rings go to the directory that
# lossgauged.service reads, where the node has it: logind empties a user's /dev/shm when that user's last session ends, though the job goes on. The attempt
# is new with each start of the job and the same on all ranks; epilog-slurmctld.sh asks for the verdict on it. What the job has set itself stays.
set -uo pipefail

rings=${LOSSGAUGE_NODE_RINGS:-/run/lossgauge/rings}
if [[ -z ${LOSSGAUGE_RING_DIR:-} && -d $rings && -w $rings ]]; then echo "export LOSSGAUGE_RING_DIR=$rings"; fi
if [[ -z ${LOSSGAUGE_ATTEMPT:-} && -n ${SLURM_JOB_ID:-} ]]; then echo "export LOSSGAUGE_ATTEMPT=$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}"; fi
exit 0
