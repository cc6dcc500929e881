"""Text that clients keep and send back unchanged, in fields that other servers fill with encrypted text."""

from __future__ import annotations

import base64
import binascii

MARK = "neuronserve:"


def seal(text: str) -> str:
    """Encode the text for such a field. It is no secret from the client."""
    return MARK + base64.b64encode(text.encode()).decode()


def unseal(sealed: str | None) -> str:
    """Decode a sealed text; "" if another server has written it."""
    if not sealed or not sealed.startswith(MARK):
        return ""
    try:
        return base64.b64decode(sealed.removeprefix(MARK), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
