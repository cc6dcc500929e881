"""Load tests: drive any OpenAI-compatible endpoint, report latency, throughput, goodput and cost per token."""
