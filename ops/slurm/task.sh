#!/usr/bin/env bash
# One node of an allocation, started by node.sbatch with srun: folders of this job on this machine, then the launcher, which ends with the task.
set -u
local=${SLURM_TMPDIR:-${TMPDIR:-/tmp}}
export ROLLSTREAM_RUN_DIR=/tmp/rs-$SLURM_JOB_ID-${SLURM_NODEID:-0}          # short: sockets stand below
export ROLLSTREAM_SCRATCH_DIR=$local/rollstream-$SLURM_JOB_ID-${SLURM_NODEID:-0}
exec "$PROJECT/ops/launch" node --grace-s "$GRACE_S" "$@"
