#!/usr/bin/env bash
# Redis on the first node of an allocation, started by node.sbatch with srun.
#
# Its data are on a disk of this machine while it serves, as network file systems lose writes and locks; in the state folder between allocations.
# The copy there is replaced whole, after the server ended. SIGUSR1 ends it: SIGTERM comes to all steps at once, and nodes drain with Redis.
set -u
shared=$ROLLSTREAM_STATE_DIR/redis
saved=$shared/data
data=${SLURM_TMPDIR:-${TMPDIR:-/tmp}}/rollstream-redis-$SLURM_JOB_ID
owner=$shared/slurm-job

if [ -s "$owner" ] && [ "$(cat "$owner")" != "$SLURM_JOB_ID" ] && [ -n "$(squeue --noheader --jobs="$(cat "$owner")" --states=running 2>/dev/null)" ]; then
  echo "job $(cat "$owner") serves the Redis of $shared: end it, or set ROLLSTREAM_REDIS_URL or another ROLLSTREAM_STATE_DIR" >&2
  exit 1
fi
echo "$SLURM_JOB_ID" > "$owner"
if [ ! -d "$saved" ] && [ -d "$saved.old" ]; then mv "$saved.old" "$saved"; fi   # killed between two renames
if [ -d "$saved" ]; then
  rm -rf "$data" && cp -a "$saved" "$data" || { echo "$saved cannot be copied to $data: is the disk full?" >&2; exit 1; }
fi

server=''
trap '' TERM INT
trap 'if [ -n "$server" ]; then kill -TERM "$server" 2>/dev/null; fi' USR1
( trap - TERM INT; exec "$PROJECT/.venv/bin/rollstream" redis serve --host 0.0.0.0 --port "${REDIS_PORT:-0}" --advertise "$(hostname)" \
    --data-dir "$data" --shared-dir "$shared" ) &
server=$!
while kill -0 "$server" 2>/dev/null; do wait "$server"; done   # a signal interrupts the wait
wait "$server"; code=$?                                         # bash keeps the code of a process that has ended

rm -rf "$saved.new"
if cp -a "$data" "$saved.new" && rm -f "$saved.new"/*.lock; then
  rm -rf "$saved.old"
  if [ -d "$saved" ]; then mv "$saved" "$saved.old"; fi
  mv "$saved.new" "$saved" && rm -rf "$saved.old" "$data" "$owner"
else
  echo "the data of Redis could not be copied to $saved.new: they are in $data on $(hostname)" >&2
  code=1
fi
exit "$code"
