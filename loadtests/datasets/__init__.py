"""Datasets: prompts for the requests of a workload (`neuronserve.server.workload`), and users' texts."""
