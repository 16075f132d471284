"""Runs on real clusters, made of parts on this host: Slurm with two nodes, Open MPI, hosts in network namespaces."""
