"""Datasets: prompts for the requests of a workload (`server.workload`), and a user's own texts."""
