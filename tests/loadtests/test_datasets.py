"""Datasets: lengths, shared prefixes, files of each format, and errors in files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronserve.loadtests.datasets.dataset import make_dataset, total_len
from neuronserve.loadtests.errors import DatasetError
from neuronserve.loadtests.prompts import ChatPrompt, IdPrompt, Session, TextPrompt, num_requests
from neuronserve.loadtests.specs import DatasetSpec
from neuronserve.loadtests.vocabulary import Vocabulary
from neuronserve.workload.traces import read_trace

VOCABULARY = Vocabulary()


def sessions(seed: int = 0, **changes: object) -> tuple[Session, ...]:
    return make_dataset(DatasetSpec(**changes), VOCABULARY, seed).sessions  # type: ignore[arg-type]


def ids(session: Session, turn: int = 0) -> list[int]:
    prompt = session.turns[turn].prompt
    assert isinstance(prompt, IdPrompt)
    return prompt.flat()


LENGTHS = st.integers(1, 200)


@given(n=st.integers(1, 20), length=LENGTHS, ratio=st.floats(0, 0.99), prefix=LENGTHS, seed=st.integers(0, 9))
def test_random_prompts_have_lengths_in_range_and_tokens_of_the_vocabulary(
    n: int, length: int, ratio: float, prefix: int, seed: int
) -> None:
    made = sessions(
        seed, num_prompts=n, random_input_len=length, random_output_len=9, random_range_ratio=ratio, prefix_len=prefix
    )
    assert len(made) == n
    for session in made:
        tokens = ids(session)
        assert max(1, int(length * (1 - ratio))) <= len(tokens) - prefix <= max(1, int(length * (1 + ratio)))
        assert all(VOCABULARY.first <= token < VOCABULARY.end for token in tokens)


def test_prompts_of_a_group_share_exactly_the_prefix() -> None:
    made = sessions(dataset_name="prefix", num_prompts=60, prefix_len=32, num_prefixes=3, random_input_len=16)
    prefixes = {tuple(ids(session)[:32]) for session in made}
    assert len(prefixes) == 3
    assert len({tuple(ids(session)) for session in made}) == 60


def test_length_scale_scales_the_lengths() -> None:
    full = sessions(dataset_name="sharegpt", num_prompts=200)
    small = sessions(dataset_name="sharegpt", num_prompts=200, length_scale=0.1)
    assert sum(map(total_len, small)) == pytest.approx(0.1 * sum(map(total_len, full)), rel=0.02)


def test_multi_turn_counts_requests_and_starts_with_the_shared_prefix() -> None:
    made = sessions(
        dataset_name="multi-turn", num_prompts=10, num_turns=4, prefix_len=8, random_input_len=5, think_time_s=1.0
    )
    assert [len(session.turns) for session in made] == [4, 4, 2]
    assert num_requests(made) == 10
    assert len({tuple(ids(session)[:8]) for session in made}) == 1
    assert [len(ids(made[0], turn)) for turn in range(4)] == [13, 5, 5, 5]
    assert made[0].turns[0].think_s == 0
    assert all(turn.think_s > 0 for turn in made[0].turns[1:])


def test_what_is_too_long_is_left_out_and_counted() -> None:
    spec = DatasetSpec(dataset_name="sharegpt", num_prompts=300, max_total_len=1000)
    dataset = make_dataset(spec, VOCABULARY, 0)
    assert max(map(total_len, dataset.sessions)) <= 1000
    assert dataset.num_left_out == 300 - len(dataset.sessions) > 0
    with pytest.raises(DatasetError, match="max_total_len is 10: the shortest session has 640 tokens"):
        sessions(num_prompts=2, max_total_len=10)


AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
)


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_azure_traces_give_arrivals_and_lengths(tmp_path: Path) -> None:
    made = sessions(dataset_name="azure-trace", dataset_path=write(tmp_path / "t.csv", AZURE))
    assert [session.arrival_s for session in made] == [0.0, pytest.approx(4.314579)]
    assert [len(ids(session)) for session in made] == [374, 396]
    assert [session.turns[0].output_len for session in made] == [44, 109]
    assert len(sessions(dataset_name="azure-trace", dataset_path=str(tmp_path / "t.csv"), num_prompts=1)) == 1


def test_other_tables_are_read_as_a_simulation_reads_them(tmp_path: Path) -> None:
    burst = "Timestamp,Model,Request tokens,Response tokens\n5,x,472,18\n6,x,9,0\n45.5,x,9,3\n"
    plain = "timestamp,input,output\n0.25,7,3\n1,8,4\n"
    for name, text in (("burstgpt-trace", burst), ("csv-trace", plain)):
        path = write(tmp_path / name, text)
        made, load = sessions(dataset_name=name, dataset_path=path), read_trace(Path(path))
        assert [session.arrival_s for session in made] == load.arrival_s.tolist()
        assert [len(ids(session)) for session in made] == load.input_len.tolist()
        assert [session.turns[0].output_len for session in made] == load.output_len.tolist()


def mooncake(*rows: tuple[float, int, int, list[int]]) -> str:
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    return "".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows)


def test_mooncake_prompts_share_tokens_where_they_share_hashes(tmp_path: Path) -> None:
    text = mooncake((1000, 1100, 5, [7, 8, 9]), (1500, 1030, 6, [7, 8, 3]), (4000, 512, 7, [4]))
    made = sessions(dataset_name="mooncake-trace", dataset_path=write(tmp_path / "m.jsonl", text))
    first, second, third = (ids(session) for session in made)
    assert [session.arrival_s for session in made] == [0.0, 0.5, 3.0]
    assert [len(first), len(second), len(third)] == [1100, 1030, 512]
    assert first[:1024] == second[:1024]
    assert first[1024:1030] != second[1024:]
    assert first[:512] != third


@given(scale=st.floats(0.01, 1.5), length=st.integers(1, 3000))
def test_scaled_mooncake_prompts_have_their_scaled_length(
    tmp_path_factory: pytest.TempPathFactory, scale: float, length: int
) -> None:
    path = tmp_path_factory.mktemp("m") / "m.jsonl"
    write(path, mooncake((0, length, 1, list(range(-(-length // 512))))))
    [session] = sessions(dataset_name="mooncake-trace", dataset_path=str(path), length_scale=scale)
    assert len(ids(session)) == max(1, round(length * scale))


def test_own_requests_may_be_text_ids_or_messages(tmp_path: Path) -> None:
    rows = [
        {"prompt": "hello", "output_tokens": 3, "timestamp": 1.0},
        {"prompt": [1, 2, 3], "timestamp": 2.5},
        {"messages": [{"role": "user", "content": "hi"}], "timestamp": 2.5},
    ]
    path = write(tmp_path / "own.jsonl", "\n".join(map(json.dumps, rows)) + "\n\n")
    made = sessions(dataset_name="jsonl", dataset_path=path, random_output_len=77)
    kinds = [type(session.turns[0].prompt) for session in made]
    assert kinds == [TextPrompt, IdPrompt, ChatPrompt]
    assert [session.turns[0].output_len for session in made] == [3, 77, 77]
    assert [session.arrival_s for session in made] == [1.0, 2.5, 2.5]


BAD = [
    ("azure-trace", AZURE + "2023-11-16 18:15:40.0,1,1\n", r"4: arrives 10\.9952 s before the line above it"),
    ("azure-trace", "a,b\n1,2\n", "1: the header has no column 'timestamp'"),
    ("csv-trace", "timestamp,input,output\n", " the trace holds no request"),
    ("mooncake-trace", mooncake((5, 6, 1, [0, 1])), "1: 2 hash_ids of 512 tokens are more than input_length 6"),
    ("jsonl", '{"prompt": "a"}\n{"prompt": "a", "messages": []}\n', "2: exactly one of prompt and messages"),
    ("jsonl", '{"promt": "a"}\n', "1: .*unknown field `promt`"),
    ("jsonl", "{\n", "1: .*truncated"),
    ("jsonl", '{"prompt": "a", "output_tokens": 0}\n', "1: output_tokens is 0"),
    ("jsonl", '{"prompt": "a", "timestamp": 2}\n{"prompt": "a", "timestamp": 1}\n', "2: arrives 1 s before the line"),
    ("jsonl", '{"prompt": "a", "timestamp": 2}\n\n{"prompt": "a"}\n', "3: timestamp must be on all lines"),
    ("jsonl", '{"prompt": "a", "timestamp": 1e99}\n', "1: the timestamp is 1e[+]99, which is out of range"),
    ("jsonl", "", " the trace holds no request"),
]


@pytest.mark.parametrize(("name", "text", "message"), BAD, ids=range(len(BAD)))
def test_a_bad_file_is_refused_with_its_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = write(tmp_path / "file", text)
    with pytest.raises(DatasetError, match=f"{path}:{message}"):
        sessions(dataset_name=name, dataset_path=path)


def test_files_that_are_not_there_or_not_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="give dataset_path"):
        sessions(dataset_name="jsonl")
    with pytest.raises(DatasetError, match=r"cannot read the trace .*nowhere\.jsonl: No such file"):
        sessions(dataset_name="jsonl", dataset_path=str(tmp_path / "nowhere.jsonl"))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DatasetError, match="is not UTF-8"):
        sessions(dataset_name="jsonl", dataset_path=str(tmp_path / "binary"))
