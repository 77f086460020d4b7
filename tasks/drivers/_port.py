"""A loopback port for the engine, and whose it is when somebody listens on it."""

import socket
from pathlib import Path

import psutil

from tasks.drivers import _processes

HOST = "127.0.0.1"


def free() -> int:
    """A port that nobody listens on just now."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return int(listener.getsockname()[1])


def is_taken(run_dir: Path, port: int) -> bool:
    """Does somebody listen on the port who is not of this run?"""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) == 0 and not is_ours(run_dir, port)


def is_ours(run_dir: Path, port: int) -> bool:
    """Does a process of the run listen on the port?"""
    return any(_listens(p.pid, port) for p in _processes.of(run_dir))


def _listens(pid: int, port: int) -> bool:
    try:
        connections = psutil.Process(pid).net_connections("tcp")
    except psutil.Error:
        return False
    return any(c.status == psutil.CONN_LISTEN and c.laddr.port == port for c in connections)
