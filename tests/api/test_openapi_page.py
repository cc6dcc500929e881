"""/openapi.json says what every endpoint takes and answers: schemathesis holds the server to it with all its checks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tokenizers import Tokenizer, processors

from tests.api.serving import PATIENCE_S, ROOT, TEMPLATE, Server, running_server, write_checkpoint
from tests.api.test_rerank import classifier
from tests.depth import thorough

FOUND = Path(sys.prefix) / "fuzz" / "bin"  # where `make test` puts it
COMMAND = shutil.which("schemathesis", path=os.pathsep.join([str(FOUND), os.environ.get("PATH", "")]))
ENDS_OR_RECORDS = ("/admin/restart-engine", "/start_profile", "/stop_profile")  # what no client is to do meanwhile
ENCODING = r"^(/v1/embeddings|/v2/embed|/embeddings?|/pooling|/classify|(/v1)?/score|(/v[12])?/rerank)$"
OF_LABELS = r"^(/pooling|/classify|(/v1)?/score|(/v[12])?/rerank)$"
OF_VECTORS = r"^(/v1/embeddings|/v2/embed|/embeddings?|/pooling)$"

pytestmark = pytest.mark.skipif(COMMAND is None, reason="schemathesis is not installed: `make test` does that")


@pytest.fixture(scope="module")
def permissive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The fake model, whose template knows tools and documents, and whose prompts have a first token of their own."""
    folder = tmp_path_factory.mktemp("permissive")
    model, template = write_checkpoint(folder / "model"), folder / "template.jinja"
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    first = ("<|start|>", tokenizer.token_to_id("<|start|>"))
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{first[0]} $A", special_tokens=[first])
    tokenizer.save(str(model / "tokenizer.json"))
    template.write_text("{% if tools and documents %}{% endif %}" + TEMPLATE)
    options = ("--chat-template", str(template), "--tool-call-parser", "hermes", "--data-dir", str(folder / "data"))
    with running_server(model, "--disable-access-log", "--enable-tokenizer-info-endpoint", *options) as server:
        yield server


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory, kernel_cache: str) -> Iterator[Server]:
    """A cross-encoder, whose one label is a score."""
    directory = classifier(tmp_path_factory.mktemp("labelled") / "bert", num_labels=1)
    options = ("--kernel-cache-dir", kernel_cache, "--dtype", "float32", "--disable-access-log")
    with running_server(directory, *options, program="neuronserve") as server:
        yield server


def hold_to_its_page(server: Server, directory: Path, *options: str) -> None:
    """Run schemathesis in `directory`, where it leaves what it has found."""
    patience = ("--request-timeout", str(PATIENCE_S), "--suppress-health-check", "all")
    # The check of `schemathesis_checks.py` stands for this one, with the reasons of what is refused all the same.
    checks = ("--checks", "all", "--exclude-checks", "positive_data_acceptance", "--continue-on-failure")
    ended = subprocess.run(
        [str(COMMAND), "run", f"{server.url}/openapi.json", *checks, *patience, *options],
        cwd=directory,
        env={
            **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            "NO_COLOR": "1",
            "PYTHONPATH": str(ROOT / "tests" / "api"),
            "SCHEMATHESIS_HOOKS": "schemathesis_checks",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print(ended.stdout[-1500:])
    assert ended.returncode == 0, ended.stdout
    assert httpx.get(server.url + "/health/ready").status_code == 200


@pytest.mark.parametrize(
    "effort",
    [
        ("--phases", "fuzzing", "--max-examples", "1", "--generation-deterministic"),
        thorough(("--phases", "examples,coverage,fuzzing,stateful", "--max-examples", "50")),
    ],
    ids=["few", "many"],
)
def test_what_generates_and_what_is_stored_keep_to_the_page(
    permissive: Server, tmp_path: Path, effort: tuple[str, ...]
) -> None:
    left_out = f"^({'|'.join(ENDS_OR_RECORDS)})$|{ENCODING}"
    hold_to_its_page(permissive, tmp_path, "--exclude-path-regex", left_out, *effort)


@pytest.mark.thorough
def test_what_scores_and_classifies_keeps_to_the_page(labelled: Server, tmp_path: Path) -> None:
    options = ("--phases", "examples,coverage,fuzzing", "--max-examples", "50")
    hold_to_its_page(labelled, tmp_path, "--include-path-regex", OF_LABELS, *options)


@pytest.mark.thorough
def test_what_embeds_keeps_to_the_page(real_server: Server, tmp_path: Path) -> None:
    options = ("--phases", "examples,coverage,fuzzing", "--max-examples", "50")
    hold_to_its_page(real_server, tmp_path, "--include-path-regex", OF_VECTORS, *options)
