"""Datasets: prompts for the requests of a workload (`neuronserve.server.workload`), and a user's own texts."""
