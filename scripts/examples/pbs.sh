#!/usr/bin/env bash
# PBS with MPICH's (or Intel MPI's) mpiexec: hydra lets the processes meet by itself.
#   qsub -v TRAIN=/data/train.libsvm,SAVE=/data/model pbs.sh
#PBS -N tidewater
#PBS -l select=2:ncpus=3:mpiprocs=3
#PBS -l walltime=01:00:00
set -euo pipefail
: "${TRAIN:?name a LIBSVM file}" "${SAVE:?name a directory that all nodes see}"
cd "${PBS_O_WORKDIR:-.}"

# One program on all processes: of 6, ranks 0 and 3 become servers, one on each node.
# PBS sends SIGTERM when the time is over, and SIGKILL some seconds later (kill_delay): the trainer
# saves and ends with 143. Leave time for it: ask for a minute more than you need.
mpiexec -n 6 tidewater-train lr --train "$TRAIN" --servers 2 --save "$SAVE" --json "$SAVE.json"
