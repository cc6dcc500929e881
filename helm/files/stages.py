"""Wait until each pipeline stage accepts connections. Arguments: their addresses, host:port."""

import socket
import sys
import time

for address in sys.argv[1:]:
    host, _, port = address.rpartition(":")
    while True:
        try:
            socket.create_connection((host, int(port)), 5).close()
            break
        except OSError as error:
            print(f"{address}: {error}", flush=True)
            time.sleep(2)
