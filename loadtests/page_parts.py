"""Shared content of report pages: titles, alerts, cost tables, the benchmark record, figures as text."""

from __future__ import annotations

from html import escape
from typing import Any

from . import html_page as html
from .svg import number

Result = dict[str, Any]


def title(result: Result) -> str:
    return f"{result['label'] or result['scenario']} on {result['model_id']}"


def lead(result: Result) -> str:
    record = result["benchmark_record"]
    rate = record["request_rate"]
    arrival = record["arrival_process"] + ("" if rate == "inf" else f" at {number(rate)} req/s")
    return f"{result['date']} · {record['endpoint']} · {arrival} · dataset {record['dataset']} · seed {record['seed']}"


def alert_texts(result: Result) -> list[str]:
    """Return the alerts above all figures."""
    texts = []
    if result.get("is_interrupted"):
        why = result.get("ended_by")
        texts.append(f"Interrupted{f' ({why})' if why else ''}: the figures cover only the requests that ran.")
    if late := result.get("rates_with_a_late_generator"):
        rates = ", ".join(map(number, late))
        texts.append(f"The generator was late at {rates} req/s: they prove nothing, and the knee may be higher.")
    if result.get("not_publishable_because"):
        texts.append(f"Not to be published: {result['not_publishable_because']}")
    return texts


def alerts(result: Result) -> list[str]:
    return [html.alert(text) for text in alert_texts(result)]


def cost_tables(accounts: Result) -> list[str]:
    """Return tables of both accounts, which are never added up."""
    parts = []
    for name, account in accounts.items():
        if not account["available"]:
            parts.append(f'<p class="none">{escape(name)}: not available, {escape(account["reason"])}</p>')
            continue
        rows = [
            [key.removeprefix("cost_per_million_").removesuffix("_usd").replace("_", " "), dollars(value)]
            for key, value in account.items()
            if key.startswith("cost_per_million_") and value is not None
        ]
        rows += [
            [f"output tokens, {basis}", dollars(at["cost_per_million_output_tokens_usd"])]
            for basis, at in account.get("by_price_basis", {}).items()
            if at and at["cost_per_million_output_tokens_usd"] is not None
        ]
        parts.append(html.table((f"{name}: {account['basis']}", "$ per 1M"), rows))
    return parts


def record_sections(result: Result, heading: str = "Benchmark record") -> str:
    return html.section(heading, html.facts(result["benchmark_record"])) + html.section(
        "Definitions and the generator itself", html.facts({**result["definitions"], **result["generator"]})
    )


def figure(value: float | None) -> str:
    return "–" if value is None else number(value)


def dollars(value: float) -> str:
    """Return USD with three significant digits."""
    return f"${number(value)}"
