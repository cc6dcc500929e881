"""Written addresses of replicas, and names that stand for several."""

from __future__ import annotations

import asyncio

import pytest

from neuronserve.server.errors import SettingsError
from neuronserve.server.route.address import Address, parse, resolved


@pytest.mark.parametrize(
    ("text", "address", "name"),
    [
        ("10.0.0.1:8000", Address("10.0.0.1", 8000), "http://10.0.0.1:8000"),
        ("http://a.example:1/", Address("a.example", 1), "http://a.example:1"),
        ("https://[::1]:443@b", Address("::1", 443, is_tls=True, zone="b"), "https://[::1]:443"),
        ("unix:/run/n.sock@a", Address(path="/run/n.sock", zone="a"), "unix:/run/n.sock"),
        ("dns:replicas:8000", Address("replicas", 8000, is_dns=True), "http://replicas:8000"),
    ],
)
def test_each_form_is_read(text: str, address: Address, name: str) -> None:
    assert parse(text, "here") == address
    assert address.name == name


@pytest.mark.parametrize("text", ["a", "a:", "a:99999", "ftp://a:1", "a:1/path", "a b:1", "unix:", "[::1:8", "a:1@"])
def test_what_is_no_address_is_refused_with_its_source(text: str) -> None:
    with pytest.raises(SettingsError, match=r"lines: .*is no address"):
        parse(text, "lines")


def test_a_name_stands_for_its_addresses_in_its_zone() -> None:
    found = asyncio.run(resolved(parse("dns:localhost:80@z", "here")))
    assert Address("127.0.0.1", 80, zone="z") in found
    assert not any(each.is_dns for each in found)
