"""Ports for servers of tests that are told theirs before they start."""

import random
import socket

#: Below those that systems hand out by themselves, to whoever asks for any.
_OWN = range(20_000, 32_000)


def free_port() -> int:
    """A port that is free now, and that nobody is given who does not ask for it by its number."""
    while True:
        port = random.SystemRandom().choice(_OWN)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
