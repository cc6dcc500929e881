"""`neuronserve top`: a live view of a running server: requests, tokens, KV cache, cost, cores, device memory by use.

The figures come first and the cores last. On a terminal with fewer lines than cores, each core is one short item.
"""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table

from ..cost.charge_rate import host_remark
from ..device.ledger import USES
from ..device.prices import usd_per_million
from ..host.memory import GIB
from .interruption import ends_quietly
from .scrape import Endpoint, Scrape, Unreachable, Window
from .server_state import CoreState, ServerState

WIDTH, HEIGHT = 120, 1000  # of a frame that is written to a file or a pipe
AROUND = 17  # lines of a frame besides one for each core
LEFT, OTHER = 58, "other"  # characters of a core's row before its uses of memory; the last use
STEP_SECONDS = "neuronserve:engine_step_seconds"
DEVICE_SECONDS = "neuronserve:device_seconds_total"


@ends_quietly()
def run_top(endpoint: Endpoint, interval_s: float, is_once: bool) -> None:
    """Show frames until q or Ctrl-C is pressed, or print one frame.

    Raises Unreachable when the server does not answer at first.
    """
    last = endpoint.scrape()
    console = Console()
    if is_once:
        time.sleep(interval_s)
        console = console if console.is_terminal else Console(width=WIDTH, height=HEIGHT)
        console.print(frame(endpoint.url, Window(last, endpoint.scrape()), console.height, console.width))
        return
    first = frame(endpoint.url, Window(last, last), console.height, console.width)
    with key_presses() as wait, Live(first, console=console, screen=True, auto_refresh=False) as live:
        while wait(interval_s) not in {"q", "Q"}:
            try:
                scrape = endpoint.scrape()
            except Unreachable as gone:
                live.update(
                    Panel(f"{gone}\nwaiting for the server to come back", title="neuronserve top"), refresh=True
                )
                continue
            window, last = Window(last, scrape), scrape
            live.update(frame(endpoint.url, window, console.height, console.width), refresh=True)


def frame(url: str, window: Window, height: int = HEIGHT, width: int = WIDTH) -> Group:
    """Return the view of one period, for `height` lines of `width` characters."""
    state = ServerState.of(window.after)
    device = "no device yet" if state.instance is None else f"{state.instance.name} (emulated)"
    pid = "" if state.pid is None else f", pid {state.pid}"
    head = (
        f"{state.model or 'neuronserve top'}  {device}, {state.phase}{pid}, neuronserve {state.version or '?'}  {url}"
    )
    are_rows = len(state.cores) + AROUND <= height
    cores = _cores(window, state, width) if are_rows else _short_cores(window, state)
    return Group(head, _numbers(window), *_remark(window, state), cores)


def _short_cores(window: Window, state: ServerState) -> RenderableType:
    """Return the busy time and used memory of each core, as one short item."""
    items = [f"{core.core_id}: {_busy(window, core):.0%} {_memory(core)}" for core in state.cores]
    return Columns(items, title="NeuronCores: busy, GiB used / budget", padding=(0, 2), equal=True)


def _busy(window: Window, core: CoreState) -> float:
    return min(1.0, window.rate(f"{STEP_SECONDS}_sum", engine=core.engine))


def _cores(window: Window, state: ServerState, width: int) -> Table:
    """Return a row for each core; uses of memory for which `width` has no room are summed in the last column."""
    table = Table(title="NeuronCores", title_justify="left", expand=True)
    for column in ("core", "", "busy", ""):
        table.add_column(column, no_wrap=True, justify="right" if column == "busy" else "left")
    table.add_column("memory GiB", justify="right", no_wrap=True)
    uses: list[str] = [use for use in USES if any(use in core.used for core in state.cores)]
    uses += sorted({use for core in state.cores for use in core.used} - set(uses))
    while len(uses) > 1 and sum(len(use) + 3 for use in [*uses, OTHER]) > width - LEFT:
        uses.pop()
    hidden = {use for core in state.cores for use in core.used} - set(uses)
    for use in [*uses, *[OTHER] * bool(hidden)]:
        table.add_column(use, justify="right", no_wrap=True)
    for core in state.cores:
        busy = _busy(window, core)
        table.add_row(
            str(core.core_id),
            core.name,
            f"{busy:.0%}",
            ProgressBar(total=1.0, completed=busy, width=12),
            _memory(core),
            *(f"{core.used.get(use, 0) / GIB:.2f}" for use in uses),
            *[f"{sum(core.used.get(use, 0) for use in hidden) / GIB:.2f}"] * bool(hidden),
        )
    return table


def _memory(core: CoreState) -> str:
    return f"{core.used_bytes / GIB:.2f} / {core.budget / GIB:.2f}"


def _numbers(window: Window) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 2))
    rows = [*_figures(window), *_modelled(window)]
    for left, right in zip(rows[::2], [*rows[1::2], ("", "")], strict=False):
        table.add_row(*left, *right)
    return table


def _figures(window: Window) -> Iterator[tuple[str, str]]:
    """Yield names and values; a row shows two of them."""
    now = window.after
    yield "requests running", f"{now.total('vllm:num_requests_running'):.0f}"
    yield "waiting", f"{now.total('vllm:num_requests_waiting'):.0f}"
    yield "prompt tokens/s", f"{window.rate('vllm:prompt_tokens_total'):,.1f}"
    yield "generated tokens/s", f"{window.rate('vllm:generation_tokens_total'):,.1f}"
    yield "KV cache in use", _kv_usage(now)
    yield "prefix cache hits", _share(window, "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total")
    yield "mean time to first token", _mean_ms(window, "vllm:time_to_first_token_seconds")
    yield "mean between tokens", _mean_ms(window, "vllm:inter_token_latency_seconds")
    yield "mean step", _mean_ms(window, STEP_SECONDS)
    yield "preemptions", f"{window.increase('vllm:num_preemptions_total'):.0f}"


def _modelled(window: Window) -> Iterator[tuple[str, str]]:
    """Yield figures of the modelled accelerator, if the server prices its steps."""
    cost, rent = "neuronserve:cost_usd_total", "neuronserve:instance_cost_usd_total"
    if window.after.has(DEVICE_SECONDS):
        yield "modelled device time", f"{_busy_s(window) / window.seconds:.2f} s/s"
        yield "modelled FLOP/s", f"{window.rate('neuronserve:device_work_total', quantity='flops'):.3g}"
    if window.after.has(cost):
        yield "modelled cost since start", f"${window.after.total(cost):,.6f}"
    if window.after.has(rent):
        tokens = window.increase("vllm:prompt_tokens_total") + window.increase("vllm:generation_tokens_total")
        yield "instance cost of an hour", f"${3600 * window.rate(rent):,.4f}"
        modelled = window.increase(cost, kind="prefill") + window.increase(cost, kind="decode")
        for name, usd in ("per million tokens", window.increase(rent)), ("modelled per million tokens", modelled):
            yield name, "no tokens" if (dollars := usd_per_million(usd, tokens)) is None else f"${dollars:,.4f}"


def _busy_s(window: Window) -> float:
    return window.increase(DEVICE_SECONDS, kind="prefill") + window.increase(DEVICE_SECONDS, kind="decode")


def _remark(window: Window, state: ServerState) -> Iterator[str]:
    """Yield how far this host decides the figures, if it does and steps are priced."""
    wall_s, idle_s = (
        len({core.engine for core in state.cores}) * window.seconds,
        window.increase(DEVICE_SECONDS, kind="idle"),
    )
    if window.after.has(DEVICE_SECONDS) and (found := host_remark(wall_s, _busy_s(window), idle_s)):
        yield f"  {found}"


def _kv_usage(scrape: Scrape) -> str:
    used, free = (scrape.total("neuronserve:kv_cache_blocks", state=state) for state in ("used", "free"))
    return f"{used / (used + free):.1%} of {used + free:,.0f} blocks" if used + free else "none yet"


def _share(window: Window, hits: str, queries: str) -> str:
    total = window.increase(queries)
    return f"{window.increase(hits) / total:.1%}" if total else "no queries"


def _mean_ms(window: Window, family: str) -> str:
    count = window.increase(f"{family}_count")
    return f"{1e3 * window.increase(f'{family}_sum') / count:,.1f} ms" if count else "none"


Wait = Callable[[float], str]


@contextmanager
def key_presses() -> Iterator[Wait]:
    """Yield a function that waits some seconds or for a key. It returns the key, or "" if none was pressed."""
    if not sys.stdin.isatty():
        yield _sleep
        return
    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)
    tty.setcbreak(file)
    try:
        yield lambda seconds: os.read(file, 1).decode("ascii", "replace") if _is_ready(file, seconds) else ""
    finally:
        termios.tcsetattr(file, termios.TCSADRAIN, before)


def _is_ready(file: int, seconds: float) -> bool:
    return bool(select.select([file], [], [], seconds)[0])


def _sleep(seconds: float) -> str:
    time.sleep(seconds)
    return ""
