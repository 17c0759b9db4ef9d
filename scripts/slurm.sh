#!/bin/sh
# slurm.sh - a job for Slurm. From the root of this project, on a file system that all nodes share:
#
#   sbatch --nodes 4 scripts/slurm.sh --data /shared/texts --out runs/mine
#   sbatch --nodes 4 scripts/slurm.sh --resume --out runs/mine       when time was up; also on another number of ranks
#   RESTARTS=20 sbatch --nodes 4 scripts/slurm.sh --out runs/mine    starts again when a rank has died; when a node has,
#                                                                    Slurm ends the job: --requeue, and then --resume
#
# What is given to sbatch wins over the lines below.
#SBATCH --job-name=ragged
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --output=slurm-%j.out
# 120 seconds before time is up, and Slurm may take 60 of them: the job saves and ends by itself. More for large models.
# B: to this script alone. Tasks of srun could get it directly, but under mpirun Slurm's tasks are mpirun's daemons.
#SBATCH --signal=B:USR1@120

# Which launcher:
#   srun --mpi=pmix   Slurm starts the ranks. Works where Slurm has a PMIx plugin ("srun --mpi=list" names it) that
#                     understands Open MPI's PMIx: Debian 12's do. Where it does not, MPI_Init fails or every rank
#                     believes that it is alone.
#   mpirun            starts its daemons by srun and the ranks itself. Works wherever Open MPI knows Slurm ("ompi_info |
#                     grep plm" names it; Debian's does), and whatever Slurm was built with.
#   srun              alone: for ranks on GPUs and make MPI=no; NCCL then finds rank 0 by Slurm's variables.
# LAUNCHER=mpirun sbatch ... chooses; otherwise PMIx where it is.
# What ./train says to go on with; what else was given to sbatch is not known here.
export RAGGED_LAUNCHER="${LAUNCHER:+LAUNCHER='$LAUNCHER' }sbatch --nodes $SLURM_JOB_NUM_NODES scripts/slurm.sh"
if [ -z "$LAUNCHER" ]; then
    case $(srun --mpi=list 2>&1) in
        *pmix*) LAUNCHER="srun --mpi=pmix" ;;
        *) LAUNCHER="mpirun --map-by slot --bind-to none" ;;
    esac
fi
echo "slurm: job $SLURM_JOB_ID on $SLURM_JOB_NODELIST: $LAUNCHER ./train $*"
# exec, so that the signal meets a shell that acts on it at once.
exec ${RESTARTS:+scripts/keep_going.sh --restarts $RESTARTS --} scripts/save_on_signal.sh $LAUNCHER ./train "$@"
