"""Connections whose bytes the kernel stamps (tasks/traffic/wire.py tells what for)."""

import socket
import ssl
import sys
from urllib.parse import urlsplit

CONNECT_S = 10.0
IDLE_KEPT_S = 4.0  # below the 5 s after which uvicorn closes an idle connection
SO_TIMESTAMPNS = 35  # asm-generic/socket.h; Python's socket module does not have it
NOT_YET = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


def connect(url: str, timeout_s: float) -> socket.socket:
    """A connection that stamps what it receives. Raises OSError."""
    place = urlsplit(url)
    port = place.port or (443 if place.scheme == "https" else 80)
    sock = _opened(place.hostname or "", port, timeout_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if place.scheme == "https":
        return ssl.create_default_context().wrap_socket(sock, server_hostname=place.hostname)
    if sys.platform == "linux":
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    return sock


def _opened(host: str, port: int, timeout_s: float) -> socket.socket:
    """Without a resolver where the address is a number: gevent's is a pool of threads, for which 256 users queue."""
    try:
        socket.inet_pton(socket.AF_INET, host)
    except OSError:
        return socket.create_connection((host, port), timeout=timeout_s)
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout_s)
        sock.connect((host, port))
    except BaseException:
        sock.close()
        raise
    return sock


def is_alive(sock: socket.socket) -> bool:
    """Whether an idle connection is still open. Something to read on it means: the server has closed it."""
    sock.setblocking(False)
    try:
        sock.recv(1) if isinstance(sock, ssl.SSLSocket) else sock.recv(1, socket.MSG_PEEK)
    except NOT_YET:
        return True
    except OSError:
        return False
    return False
