"""This engine and its peers side by side on one machine: `python -m benchmarks.compare CHECKPOINT`.

records: cases and figures; ratios: statistics; interleave: a comparison and its turns; process, worker: child programs;
engine_worker, llama_cpp, openvino_worker, servers: one contender each; report: tables and JSON.
"""
