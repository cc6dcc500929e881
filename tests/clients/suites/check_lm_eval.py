"""EleutherAI's lm-eval: a task of choices by log probabilities, and one of generation, with data of their own."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

os.environ |= {"HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1"}

from lm_eval import simple_evaluate

ANSWERS = [
    ("The sky is blue. The sky is", [" blue", " seventeen"]),
    ("one two three four one two three", [" four", " zz"]),
]
SUMS = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in ((3, 4), (2, 2), (5, 1))]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    return tmp_path


def task(home: Path, name: str, rows: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    file = home / f"{name}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = {"data_files": {"test": str(file)}, "cache_dir": str(home)}
    return {"task": name, "dataset_path": "json", "dataset_kwargs": data, "test_split": "test", **more}


def test_choices_by_their_log_probabilities(url: str, home: Path) -> None:
    rows = [{"text": text, "choices": choices} for text, choices in ANSWERS]
    asked = task(
        home,
        "choices",
        rows,
        output_type="multiple_choice",
        doc_to_text="{{text}}",
        doc_to_choice="{{choices}}",
        doc_to_target=0,
        target_delimiter="",
        metric_list=[{"metric": "acc"}],
    )
    options = {"model": "fake", "base_url": f"{url}/v1/completions", "tokenizer_backend": "remote", "max_length": 2048}
    found = simple_evaluate("local-completions", model_args=options, tasks=[asked])
    assert found["results"]["choices"]["acc,none"] == 1


def test_sums_by_their_text(url: str, home: Path) -> None:
    asked = task(
        home,
        "sums",
        SUMS,
        output_type="generate_until",
        doc_to_text="{{question}}",
        doc_to_target="{{answer}}",
        generation_kwargs={"until": ["\n\n"], "max_gen_toks": 60, "temperature": 0},
        filter_list=[
            {
                "name": "last",
                "filter": [{"function": "regex", "regex_pattern": r"(\d+)\.?$"}, {"function": "take_first"}],
            }
        ],
        metric_list=[{"metric": "exact_match"}],
    )
    options = {"model": "fake", "base_url": f"{url}/v1/chat/completions", "num_concurrent": 2}
    found = simple_evaluate("local-chat-completions", model_args=options, tasks=[asked], apply_chat_template=True)
    assert found["results"]["sums"]["exact_match,last"] >= 2 / 3
