"""Datasets: prompts for the requests of a workload (`neuronserve.workload`), and users' texts."""
