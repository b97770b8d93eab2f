"""A server on this machine that many clients reach at once, however slow it is to accept them."""

from http.server import ThreadingHTTPServer


class Server(ThreadingHTTPServer):
    """Of the standard library, whose own queue of five resets the sixth connection of a burst."""

    request_queue_size = 128
