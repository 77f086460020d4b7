"""Connections to the backends: new ones with a deadline, and the free ones, by origin."""

import asyncio
import ssl
from collections.abc import Iterable
from functools import lru_cache

from tasks.gateway.upstream import Address, Connection, UpstreamFailed


class Pool:
    """Free connections by origin. Each closes itself when nobody wants it for KEEP_S."""

    def __init__(self, *, connect_timeout_s: float, idle_timeout_s: float) -> None:
        self.connect_timeout_s = connect_timeout_s
        self.idle_timeout_s = idle_timeout_s
        self.free: dict[tuple[str, str, int], list[Connection]] = {}

    async def post(self, place: Address, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> Connection:
        """Send a POST; the caller ends the connection. Raises UpstreamFailed if there is no way to the backend."""
        connection = self._take(place) or await self.connect(place)
        connection.begin(_request(place, headers, body))
        return connection

    def close(self) -> None:
        """Cut all free connections."""
        for shelf in self.free.values():
            for connection in list(shelf):
                connection.drop()

    async def connect(self, place: Address) -> Connection:
        """A new connection. Raises UpstreamFailed in words."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.connect_timeout_s):
                _, connection = await loop.create_connection(
                    lambda: Connection(place, self.idle_timeout_s, self._shelf(place)),
                    place.host,
                    place.port,
                    ssl=_tls() if place.scheme == "https" else None,
                )
        except TimeoutError as error:
            words = f"no connection to {place.authority} within {self.connect_timeout_s:g} s"
            raise UpstreamFailed("connect_timeout", words, status=504) from error
        except ConnectionRefusedError as error:
            raise UpstreamFailed("refused", f"{place.authority} refuses connections: is its server up?") from error
        except OSError as error:  # no route, no such name, bad certificate
            raise UpstreamFailed("unreachable", f"no connection to {place.authority}: {error}") from error
        return connection

    def _take(self, place: Address) -> Connection | None:
        shelf = self._shelf(place)
        while shelf:
            connection = shelf.pop()
            if not connection.transport.is_closing():
                return connection
        return None

    def _shelf(self, place: Address) -> list[Connection]:
        return self.free.setdefault((place.scheme, place.host, place.port), [])


@lru_cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def _request(place: Address, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> bytes:
    head = b"".join([b"%b: %b\r\n" % header for header in headers])
    return b"%b%bcontent-length: %d\r\n\r\n%b" % (place.post, head, len(body), body)
