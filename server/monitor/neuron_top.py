"""`neuronserve top`: a live view of a running server: cores, device memory by use, requests, tokens, KV cache, cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table

from server.device.ledger import USES
from server.device.parts import GIB
from server.monitor.interruption import ends_quietly
from server.monitor.scrape import Endpoint, Scrape, Unreachable, Window
from server.monitor.server_state import CoreState, ServerState

WIDTH = 120  # of a frame that goes to a file or a pipe
STEP_SECONDS = "neuronserve:engine_step_seconds"


@ends_quietly()
def run_top(url: str, interval_s: float, is_once: bool, sleep: Callable[[float], None] = time.sleep) -> None:
    """Show frames until interrupted, or print one. Raises Unreachable when the server does not answer at first."""
    endpoint = Endpoint(url)
    last = endpoint.scrape()
    console = Console()
    if is_once:
        sleep(interval_s)
        console = console if console.is_terminal else Console(width=WIDTH)
        console.print(frame(url, Window(last, endpoint.scrape())))
        return
    with Live(frame(url, Window(last, last)), console=console, screen=True, auto_refresh=False) as live:
        while True:
            sleep(interval_s)
            try:
                scrape = endpoint.scrape()
            except Unreachable as gone:
                live.update(Panel(f"{gone}\nwaiting for it to come back", title="neuronserve top"), refresh=True)
                continue
            window, last = Window(last, scrape), scrape
            live.update(frame(url, window), refresh=True)


def frame(url: str, window: Window) -> Group:
    """The whole view of one period."""
    state = ServerState.of(window.after)
    part = "no device yet" if state.part is None else f"{state.part.name} (emulated)"
    pid = "" if state.pid is None else f", pid {state.pid}"
    head = f"{state.model or 'neuronserve top'}  {part}, {state.phase}{pid}, neuronserve {state.version or '?'}  {url}"
    return Group(head, _cores(window, state), _numbers(window))


def _cores(window: Window, state: ServerState) -> Table:
    table = Table(title="NeuronCores", title_justify="left", expand=True)
    for column in ("core", "", "busy", ""):
        table.add_column(column, no_wrap=True, justify="right" if column == "busy" else "left")
    table.add_column("memory GiB", justify="right", no_wrap=True)
    uses: list[str] = [use for use in USES if any(use in core.used for core in state.cores)]
    uses += sorted({use for core in state.cores for use in core.used} - set(uses))
    for use in uses:
        table.add_column(use, justify="right")
    for core in state.cores:
        busy = min(1.0, window.rate(f"{STEP_SECONDS}_sum", engine=core.engine))
        table.add_row(
            str(core.core_id),
            core.name,
            f"{busy:.0%}",
            ProgressBar(total=1.0, completed=busy, width=12),
            _memory(core),
            *(f"{core.used.get(use, 0) / GIB:.2f}" for use in uses),
        )
    return table


def _memory(core: CoreState) -> str:
    return f"{core.used_bytes / GIB:.2f} / {core.budget / GIB:.2f}"


def _numbers(window: Window) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 2))
    rows = list(_figures(window))
    for left, right in zip(rows[::2], [*rows[1::2], ("", "")], strict=False):
        table.add_row(*left, *right)
    return table


def _figures(window: Window) -> Iterator[tuple[str, str]]:
    """Names and values, two of which make a row."""
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
    yield from _modelled(window)


def _modelled(window: Window) -> Iterator[tuple[str, str]]:
    """Figures of the modelled part, where the server prices its steps."""
    seconds, cost = "neuronserve:device_seconds_total", "neuronserve:cost_usd_total"
    if window.after.has(seconds):
        busy = window.rate(seconds, kind="prefill") + window.rate(seconds, kind="decode")
        yield "modelled device time", f"{busy:.2f} s/s"
        yield "modelled FLOP/s", f"{window.rate('neuronserve:device_work_total', quantity='flops'):.3g}"
    if window.after.has(cost):
        yield "cost since start", f"${window.after.total(cost):,.6f}"
        yield "cost an hour now", f"${3600 * window.rate(cost):,.4f}"


def _kv_usage(scrape: Scrape) -> str:
    used, free = (scrape.total("neuronserve:kv_cache_blocks", state=state) for state in ("used", "free"))
    return f"{used / (used + free):.1%} of {used + free:,.0f} blocks" if used + free else "none yet"


def _share(window: Window, part: str, whole: str) -> str:
    total = window.increase(whole)
    return f"{window.increase(part) / total:.1%}" if total else "none asked"


def _mean_ms(window: Window, family: str) -> str:
    count = window.increase(f"{family}_count")
    return f"{1e3 * window.increase(f'{family}_sum') / count:,.1f} ms" if count else "none"
