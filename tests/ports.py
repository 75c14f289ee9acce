"""Ports for servers that bind them a while after they were chosen."""

import contextlib
import random
import socket

# Below what Linux gives to outgoing connections and to servers that ask for any port, so no other process takes one.
CHOSEN = range(20_000, 32_000)


def free_port() -> int:
    """Return a port of this machine that nobody listens on."""
    while True:
        port = random.SystemRandom().choice(CHOSEN)
        with contextlib.suppress(OSError), socket.socket() as found:
            found.bind(("", port))
            return port
