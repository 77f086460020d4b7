"""The echo server of the null calibration: it answers at once, so whatever a client adds to it is the client's own.

A process of its own: inside the client's, its work would be taken for the client's. One epoll loop, no framework, so
that it costs a tenth of what reading its answers costs. A request says in its body how it is to be answered:

    "echo": [chunks, gap_us, first_gap_us]    so many chunks, gap_us apart; the second one first_gap_us after the first

Each chunk's text is two stamps of the machine's monotonic clock, WIDTH digits each: when it was due (of the first: when
the request had been read) and when it was handed to the kernel. So the server's own lateness travels with the answer,
through any proxy, and is never taken for the client's. What a stamp cannot tell: how long a request lay in the socket
before this process woke up. That is counted as the client's, and is small unless the machine is busy.

A client that does not read fills its socket; what is due then waits here and keeps the stamp of when it was to be sent.

    python -m tasks.traffic.echo HOST     prints the port, serves until its standard input ends
"""

import gc
import heapq
import re
import selectors
import socket
import sys
import time
from dataclasses import dataclass, field

WIDTH = 19  # digits of a stamp; 2**63 ns has as many
BACKLOG = 2048
READ_BYTES = 1 << 16
MAX_BYTES = 16 << 20  # of one request
ASKED = re.compile(rb'"echo": ?\[ ?(\d+), ?(\d+), ?(\d+) ?\]')
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
REFUSED = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
OPENING = b'data: {"id":"chatcmpl-echo","object":"chat.completion.chunk","created":1,"model":"echo","choices":['
ROLE = OPENING + b'{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}\n\n'
CHUNK = OPENING + b'{"index":0,"delta":{"content":"%019d%019d"},"logprobs":null,"finish_reason":null}]}\n\n'
FINISH = OPENING + b'{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]}\n\n'
USAGE = OPENING + b'],"usage":{"prompt_tokens":1,"completion_tokens":%d,"total_tokens":%d}}\n\n'
DONE = b"data: [DONE]\n\n"
END = b"0\r\n\r\n"


@dataclass(eq=False)
class Connection:
    """One client, and the answer that it is being given."""

    sock: socket.socket
    came: bytearray = field(default_factory=bytearray)
    unsent: bytearray = field(default_factory=bytearray)
    chunks: int = 0  # of this answer
    left: int = 0  # of them, not yet sent
    gap_ns: int = 0
    is_gone: bool = False


def stamps(text: str) -> list[tuple[int, int]]:
    """(due, sent) of each chunk, from the text of an answer. Raises ValueError for a text that is not an echo."""
    if len(text) % (2 * WIDTH):
        raise ValueError(f"not an echo: {len(text)} characters")
    numbers = [int(text[i : i + WIDTH]) for i in range(0, len(text), WIDTH)]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


class Server:
    """Answers on a listening socket until `stop` is readable and at its end."""

    def __init__(self, listener: socket.socket, stop: int) -> None:
        self.listener, self.stop = listener, stop
        self.due: list[tuple[int, int, Connection]] = []  # a heap; the number keeps connections from being compared
        self.number = 0
        self.poll = selectors.EpollSelector()
        listener.setblocking(False)
        self.poll.register(listener, selectors.EVENT_READ, None)
        self.poll.register(stop, selectors.EVENT_READ, stop)

    def serve(self) -> None:
        while True:
            for key, mask in self.poll.select(self._wait_s()):
                if key.data == self.stop:
                    return
                if key.data is None:
                    self._accept()
                elif mask & selectors.EVENT_WRITE:
                    self._flush(key.data)
                else:
                    self._read(key.data)
            self._send_what_is_due()

    def _wait_s(self) -> float | None:
        return max(0.0, (self.due[0][0] - time.monotonic_ns()) / 1e9) if self.due else None

    def _send_what_is_due(self) -> None:
        while self.due and self.due[0][0] <= time.monotonic_ns():
            due_ns, _, connection = heapq.heappop(self.due)
            if not connection.is_gone:
                self._chunk(connection, due_ns, connection.gap_ns)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.poll.register(sock, selectors.EVENT_READ, Connection(sock))

    def _read(self, connection: Connection) -> None:
        try:
            data = connection.sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        connection.came += data
        if not data or len(connection.came) > MAX_BYTES:
            self._drop(connection)
            return
        head, split, rest = connection.came.partition(b"\r\n\r\n")
        length = LENGTH.search(head)
        if split and len(rest) >= (int(length[1]) if length else 0):
            self._answer(connection, bytes(rest))

    def _answer(self, connection: Connection, body: bytes) -> None:
        heard_ns = time.monotonic_ns()
        connection.came.clear()
        asked = ASKED.search(body)
        if asked is None or not int(asked[1]) or connection.left:
            self._write(connection, REFUSED)
            self._drop(connection)
            return
        connection.chunks = connection.left = int(asked[1])
        connection.gap_ns = int(asked[2]) * 1000
        self._write(connection, HEAD + _framed(ROLE))
        self._chunk(connection, heard_ns, int(asked[3]) * 1000)

    def _chunk(self, connection: Connection, due_ns: int, next_in_ns: int) -> None:
        connection.left -= 1
        tail = b"" if connection.left else _ending(connection.chunks)
        self._write(connection, _framed(CHUNK % (due_ns, time.monotonic_ns())) + tail)
        if connection.left and not connection.is_gone:
            self.number += 1
            heapq.heappush(self.due, (due_ns + next_in_ns, self.number, connection))

    def _write(self, connection: Connection, data: bytes) -> None:
        if connection.unsent:
            connection.unsent += data
            return
        try:
            sent = connection.sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._drop(connection)
            return
        if sent < len(data):
            connection.unsent += data[sent:]
            self.poll.modify(connection.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, connection)

    def _flush(self, connection: Connection) -> None:
        data, connection.unsent = bytes(connection.unsent), bytearray()
        self.poll.modify(connection.sock, selectors.EVENT_READ, connection)
        self._write(connection, data)

    def _drop(self, connection: Connection) -> None:
        if not connection.is_gone:
            connection.is_gone = True
            self.poll.unregister(connection.sock)
            connection.sock.close()


def _framed(event: bytes) -> bytes:
    """As one chunk of HTTP's chunked encoding."""
    return b"%x\r\n%b\r\n" % (len(event), event)


def _ending(chunks: int) -> bytes:
    return b"".join(map(_framed, (FINISH, USAGE % (chunks, chunks + 1), DONE))) + END


def main(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family, backlog=BACKLOG) as listener:
        print(listener.getsockname()[1], flush=True)
        gc.disable()  # what it holds is in no cycles, and a collection is a pause
        Server(listener, sys.stdin.fileno()).serve()


if __name__ == "__main__":
    main(sys.argv[1])
