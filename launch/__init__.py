"""The ways in: the megaxf command and the target of torchrun, srun and mpirun."""
