"""neuronserve: an OpenAI-compatible LLM server for emulated Inferentia-class devices."""

__version__ = "0.1.0"
