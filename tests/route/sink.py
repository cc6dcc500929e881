"""A server that answers each request after a time, for measurements: `python -m tests.route.sink PORT SECONDS`."""

from __future__ import annotations

import asyncio
import re
import sys

import uvloop

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pause_s: float) -> None:
    while head := await reader.read(1) and await reader.readuntil(b"\r\n\r\n"):
        if length := re.search(rb"content-length: (\d+)", head, re.IGNORECASE):
            await reader.readexactly(int(length[1]))
        elif b"chunked" in head.lower():
            while size := int(await reader.readline(), 16):
                await reader.readexactly(size + 2)
            await reader.readline()
        await asyncio.sleep(pause_s * head.startswith(b"OST"))  # its first byte was read before
        writer.write(ANSWER)


async def serve(port: int, pause_s: float) -> None:
    server = await asyncio.start_server(lambda *ends: answer(*ends, pause_s), "127.0.0.1", port, limit=2**20)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), float(sys.argv[2])))
