"""Text that clients keep for the server and give back as it is, in fields that others have for encrypted text."""

from __future__ import annotations

import base64
import binascii

MARK = "neuronserve:"


def seal(text: str) -> str:
    """The text as such a field carries it. It is no secret from the client."""
    return MARK + base64.b64encode(text.encode()).decode()


def unseal(sealed: str | None) -> str:
    """The text again; "" for what another server has written."""
    if not sealed or not sealed.startswith(MARK):
        return ""
    try:
        return base64.b64decode(sealed.removeprefix(MARK), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
