"""This engine and its peers side by side on one machine: `python -m benchmarks.compare CHECKPOINT`.

records -> what is compared; ratios -> the statistics; interleave -> who runs when; process, worker -> programs that are
started, paused and stopped; engine_side, llama_cpp, openvino, servers -> one contender each; report -> tables and JSON.
"""
