# What the batch scripts share: start the ranks, pass the signal ahead of the time limit on to them, queue again.
# shellcheck shell=bash

STOPPED=75 # The exit code of a run that was asked to stop, and saved: see docs/cluster.md.

# run_ranks PROGRAM [ARGUMENT...]: one srun over all nodes; its exit code is in $code afterwards.
#
# Slurm sends USR1 to this shell ahead of the time limit (#SBATCH --signal), and TERM where the job is cancelled.
# srun passes USR1 on to all processes of all nodes. It is sent again, for ranks that were not listening yet.
# Each task ignores it until it listens, as the signal would kill it: hence the shell around the program.
run_ranks() {
  # The quoted words are for the shell of the task.
  # shellcheck disable=SC2016
  srun --kill-on-bad-exit=0 --wait=120 --cpu-bind=none bash -c 'trap "" USR1; exec "$@"' ranks "$@" &
  local ranks=$!
  while kill -0 "$ranks" 2>/dev/null; do
    if [ "$stopping" = yes ]; then
      kill -USR1 "$ranks" 2>/dev/null || true
      for _ in $(seq 15); do ! kill -0 "$ranks" 2>/dev/null || sleep 1 || true; done
    else
      wait "$ranks" || true # Until srun ends, or a signal comes.
    fi
  done
  wait "$ranks" && code=0 || code=$?
}

# run_until_done PROGRAM [ARGUMENT...]: run_ranks, and again from the newest checkpoint where ranks broke down.
#
# At most $restarts times, with a pause in which Slurm may find that a node has failed: then it queues the job again.
run_until_done() {
  stopping=no cancelled=no code=0
  trap 'stopping=yes; echo "the time limit is near: the run is asked to save and stop"' USR1
  trap 'cancelled=yes' TERM
  local broken=0 unit=${pause:?}
  while run_ranks "$@" && breakdown && [ "$broken" -lt "${restarts:?}" ]; do
    broken=$((broken + 1))
    echo "the ranks broke down with exit code $code; start $broken of $restarts again in $((broken * unit)) s"
    sleep $((broken * unit)) || true # A signal to all processes of the job ends it.
    # In the pause Slurm may have asked for the end of the job, as where it has found a failed node: no start follows.
    [ "$cancelled" = no ] || break
    [ "$stopping" = no ] || { code=$STOPPED && break; }
  done
}

# Whether the run ended for none of the reasons that it states itself: done, a fault of the user's, diverged, stopped.
# A user's fault shows in the first start of the job; in a later one it is the site's, such as a host without its name.
breakdown() {
  [ "$stopping$cancelled" = nono ] || return 1
  case $code in
    0 | 3 | "$STOPPED") return 1 ;;
    2) [ "$broken" -gt 0 ] || [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] ;;
  esac
}

# queue_again: put this job, or this task of an array, back into the queue where the run stopped before its end.
#
# again=requeue  the same job runs again (the site allows --requeue)
# again=chain    a job that waits for this one with --dependency=afternotok goes on
queue_again() {
  local job=$SLURM_JOB_ID
  # SLURM_JOB_ID of the last task of an array is that of the array as a whole.
  [ -z "${SLURM_ARRAY_JOB_ID:-}" ] || job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
  if [ "$cancelled" = yes ]; then
    echo "job $job was cancelled (exit code $code); the same command continues"
  elif [ "$code" = "$STOPPED" ] && [ "${again:?}" = requeue ]; then
    echo "job $job stopped and saved; it goes back into the queue"
    scontrol requeue "$job" || { echo "the site forbids it: use megaxf submit --chain" >&2 && exit "$code"; }
    sleep 60 # Slurm ends this shell.
  else
    echo "job $job ends with exit code $code"
  fi
  exit "$code"
}
