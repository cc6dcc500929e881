"""Workloads by name: each module here makes the sessions of one kind of dataset, from a seed and nothing else."""
