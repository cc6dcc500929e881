"""Programs for developers, run as `python -m tools.NAME`. The server never imports them."""
