"""What a new user does from nothing but the wheel, with the seconds of each step: `python -m tests.first_minute WHEEL`.

pip's cache, or a local index, should have the dependencies; the kernel cache begins empty. Each step raises if what it
shows is not there.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from neuronserve.testing import running
from tests.console.browsing import CHROMIUM, say

QUESTION = "Hello! What can you do?"
TEST = """
import json, urllib.request

def test_my_application(neuronserve_server):
    body = json.dumps({"messages": [{"role": "user", "content": "The capital of France?"}]}).encode()
    request = urllib.request.Request(neuronserve_server.base_url + "/chat/completions", body)
    request.add_header("Content-Type", "application/json")
    with neuronserve_server.script({"answer": "Paris."}):
        answer = json.load(urllib.request.urlopen(request))
    assert answer["choices"][0]["message"]["content"] == "Paris."
"""
PLAN = ("llama-3.1-8b", "--request-rate", "2", "--tpot-ms", "60", "--stack", "nxdi-vllm", "--emit")


@dataclass
class NewUser:
    """One user: a Python, an empty folder, and the times of what was done."""

    home: Path
    python: str
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        own = ("PYTHON", "VIRTUAL_ENV", "NEURONSERVE")
        left = {name: value for name, value in os.environ.items() if not name.startswith(own)}
        return {**left, "XDG_CACHE_HOME": str(self.home / "cache"), "PIP_CACHE_DIR": pip_cache()}

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        begin = time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - begin

    def run(self, *words: str | Path, text: str | None = None) -> str:
        """Run a command of the new environment; return what it prints."""
        command = [self.home / "venv" / "bin" / words[0], *words[1:]]
        ran = subprocess.run(
            command, cwd=self.home, env=self.environment, input=text, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    def install(self, *wheels: Path) -> None:
        with self.step("`python -m venv`"):
            subprocess.run([self.python, "-m", "venv", "venv"], cwd=self.home, env=self.environment, check=True)
        with self.step("`pip install`, packages in pip's cache"):
            self.run("python", "-m", "pip", "install", "--quiet", *wheels)

    @contextlib.contextmanager
    def served(self, kernels: str) -> Iterator[str]:
        """Yield the address of a server, whose start is a step."""
        words = ["env", *(f"{name}={value}" for name, value in self.environment.items())]
        words += [str(self.home / "venv" / "bin" / "neuronserve"), "serve", "--port", "0"]
        with contextlib.ExitStack() as server:
            with self.step(f"`neuronserve serve`, {kernels}"):
                ready = server.enter_context(running(words))
            yield ready["url"]

    def ask(self, url: str) -> None:
        body = {"stream": True, "messages": [{"role": "user", "content": QUESTION}]}
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60) as answer:
            lines = [line for line in answer.raise_for_status().iter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        assert len(lines) > 5

    def browse(self, url: str) -> bool:
        """Ask on the console's page; return False where there is no browser."""
        try:
            from playwright.sync_api import sync_playwright
        except ImportError:
            return False
        if CHROMIUM is None:
            return False
        with sync_playwright() as started:
            browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            page: Any = browser.new_page()
            page.goto(f"{url}/#/playground")
            assert say(page, QUESTION).inner_text()
            browser.close()
        return True


def pip_cache() -> str:
    """Return the folder of pip's cache, before a new home is set."""
    asked = [sys.executable, "-m", "pip", "cache", "dir"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def first_minute(home: Path, python: str, wheels: list[Path], step: Callable[[str], None] = print) -> dict[str, float]:
    """Do it all in an empty folder; return the seconds of each step, in order."""
    user = NewUser(home, python)
    user.install(*wheels)
    step("installed")
    with user.served("empty kernel cache") as url, user.step("first streamed answer"):
        user.ask(url)
    step("answered")
    with user.served("kernels compiled") as url:
        with user.step("`neuronserve chat`, one question"):
            assert user.run("neuronserve", "chat", "--url", url, text=QUESTION).strip()
        with user.step("a question on the console's page"):
            has_browsed = user.browse(url)
    if not has_browsed:
        del user.seconds["a question on the console's page"]
    user.run("python", "-m", "pip", "install", "--quiet", "pytest")
    (home / "test_application.py").write_text(TEST)
    with user.step("`pytest`, the fixture and a written answer"):
        assert "1 passed" in user.run("python", "-m", "pytest", "-p", "no:cacheprovider", "test_application.py")
    with user.step("`neuronserve plan`, with its files"):
        assert user.run("neuronserve", "plan", *PLAN, "out").startswith("Take ")
    assert {"README.md", "main.tf.json"} <= {file.name for file in (home / "out").rglob("*")}
    return user.seconds


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("wheels", nargs="+", type=Path, help="of neuronserve, and of its kernels")
    parser.add_argument("--python", default="python3")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="neuronserve-user-") as home:
        wheels = [wheel.absolute() for wheel in args.wheels]
        seconds = first_minute(Path(home), args.python, wheels, lambda what: print(what, file=sys.stderr))
    print("| step | seconds |\n|---|---:|")
    print("\n".join(f"| {name} | {taken:.1f} |" for name, taken in seconds.items()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
