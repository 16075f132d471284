# What your site needs before a job starts: sourced by every batch script of this folder, on the first node of the job.
# Edit it, or name another with `megaxf submit --environment FILE`. All ranks inherit what is exported here.
# shellcheck shell=bash

# module load cuda
# source /path/to/venv/bin/activate

# The Python with megaxf. `megaxf submit` fills in the one that it runs with.
python=${python:-python3}

# Where the name of the first node is not an address that the others reach:
# export MASTER_ADDR=10.0.0.1
# The network interface between nodes, where the one towards the first node is not the fast one:
# export MEGAXF_INTERFACE=ib0
# How long ranks wait for one another at the start, in seconds:
# export MEGAXF_CONNECT_SECONDS=300

# Where ranks broke down, they are started again after one, two, three times so many seconds.
pause=${pause:-60}

# With more than some hundreds of ranks, rank 0 holds more connections than the usual limit of open files.
ulimit -n "$(ulimit -Hn)"
