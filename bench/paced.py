"""A server whose send times are known: `python -m bench.paced [--record FILE --ttft-ms 50 --gap-ms 20 ...]`.

It paces answers like an engine that never gets slower, from one process and one epoll loop, and writes down what it
really did: per request when it came (by the kernel's own stamp, so that no wait in this process is taken for the
client's), and when each chunk was handed to the kernel. That record is the truth of bench/client; `due` is what was
wanted, so the server's own lateness is known and no tool is blamed for it. SIGTERM has the record written.

An answer is --chunks chunks of one word, whatever max_tokens says (one tool cannot be told), one HTTP chunk and one
write each, gap after gap, the first one --ttft-ms after the request. The first comes with the role, the last with
finish reason, usage and [DONE]: nothing that a tool could take for another first or last token. With --spread-ms each
of the first --wave requests waits a random time more, up to so much: from then on the streams of a closed loop keep the
phases that this gave them. Without it, all that start together stay together: a burst. A request that does not ask for
a stream gets the same answer as one JSON object, after --ttft-ms.

The port is printed first.
"""

import argparse
import ctypes
import gc
import heapq
import json
import random
import re
import select
import signal
import socket
import struct
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic_ns
from typing import Any

from tasks.traffic.connection import SO_TIMESTAMPNS
from tasks.traffic.wire import clocks_apart_ns

LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
STREAMED = re.compile(rb'"stream": *true')
ASKED_ID = re.compile(rb"\r\nx-request-id: *([^\r\n]*)", re.IGNORECASE)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
OPENING = b'data: {"id":"chatcmpl-%b","object":"chat.completion.chunk","created":1700000000,"model":"paced",'
ROLE = b'"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}\n\n'
WORD = b'"choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}]}\n\n'
FINISH = b'"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"length"}]}\n\n'
USAGE = b'"choices":[],"usage":{"prompt_tokens":32,"completion_tokens":%d,"total_tokens":%d}}\n\n'
DONE = b"data: [DONE]\n\n"
WHOLE = (
    b'{"id":"chatcmpl-%b","object":"chat.completion","created":1700000000,"model":"paced","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"%b"},"logprobs":null,"finish_reason":"length"}],"usage":'
    b'{"prompt_tokens":32,"completion_tokens":%d,"total_tokens":%d}}'
)
PR_SET_TIMERSLACK = 29


@dataclass(eq=False, slots=True)
class Answer:
    """One answer on its way. sent_ns: per chunk when it was handed to the kernel."""

    asked_id: str
    arrived_ns: int
    chunks: int
    due_ns: int  # of the first chunk
    word: bytes
    fd: int
    is_streamed: bool
    sent_ns: list[int] = field(default_factory=list)
    is_gone: bool = False


@dataclass(eq=False, slots=True)
class Client:
    sock: socket.socket
    came: bytearray = field(default_factory=bytearray)
    unsent: bytearray = field(default_factory=bytearray)
    answer: Answer | None = None


class Server:
    """`late_reads`: answers that a full socket kept back, which a client that reads in time never causes."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.gap_ns = int(options.gap_ms * 1e6)
        self.rng = random.Random(options.seed)
        self.listener = socket.create_server((options.host, options.port), backlog=4096)
        self.listener.setblocking(False)
        self.listener.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self.poll = select.epoll()
        self.poll.register(self.listener, select.EPOLLIN)
        self.clients: dict[int, Client] = {}
        self.queue: list[tuple[int, int, Answer]] = []
        self.answers: list[Answer] = []  # all of them, if they are to be recorded
        self.begun = 0
        self.apart_ns = clocks_apart_ns()
        self.late_reads = 0
        self.is_stopped = False

    def serve(self) -> None:
        """Until `is_stopped`."""
        while not self.is_stopped:
            wait_s = (self.queue[0][0] - monotonic_ns()) / 1e9 if self.queue else 0.1
            if wait_s > 0:  # epoll itself waits for whole milliseconds
                select.select([self.poll], [], [], min(wait_s, 0.1))
            for fd, mask in self.poll.poll(0):
                self._ready(fd, mask)
            self._send_due()

    def _send_due(self) -> None:
        queue, now_ns = self.queue, monotonic_ns()
        while queue and queue[0][0] <= now_ns:
            due_ns, number, answer = heapq.heappop(queue)
            self._send(answer)
            if len(answer.sent_ns) < answer.chunks and not answer.is_gone:
                heapq.heappush(queue, (due_ns + self.gap_ns, number, answer))

    def _send(self, answer: Answer) -> None:
        count = len(answer.sent_ns) + 1
        if not answer.is_streamed:
            self._send_whole(answer)
            return
        data = answer.word
        if count == 1:
            opening = OPENING % answer.asked_id.encode()
            data = HEAD + framed(opening + ROLE) + data
        if count == answer.chunks:
            opening = OPENING % answer.asked_id.encode()
            usage = USAGE % (count, count + 32)
            data += b"".join(map(framed, (opening + FINISH, opening + usage, DONE))) + b"0\r\n\r\n"
        client = self.clients.get(answer.fd)
        if client is None or client.answer is not answer:
            answer.is_gone = True
            return
        answer.sent_ns.append(monotonic_ns())
        if count == answer.chunks:
            client.answer = None
        self._write(client, data)

    def _send_whole(self, answer: Answer) -> None:
        client = self.clients.get(answer.fd)
        if client is None or client.answer is not answer:
            answer.is_gone = True
            return
        count = self.options.chunks
        body = WHOLE % (answer.asked_id.encode(), b" word" * count, count, count + 32)
        answer.sent_ns.append(monotonic_ns())
        client.answer = None
        self._write(client, JSON_HEAD % len(body) + body)

    def _write(self, client: Client, data: bytes) -> None:
        if not client.unsent:
            try:
                data = data[client.sock.send(data) :]
            except BlockingIOError:
                pass
            except OSError:
                return
        if data:
            client.unsent += data
            self.late_reads += 1
            self.poll.modify(client.sock, select.EPOLLIN | select.EPOLLOUT)

    def _ready(self, fd: int, mask: int) -> None:
        if fd == self.listener.fileno():
            self._accept()
            return
        client = self.clients[fd]
        if mask & select.EPOLLOUT and client.unsent:
            rest, client.unsent = bytes(client.unsent), bytearray()
            self.poll.modify(client.sock, select.EPOLLIN)
            self._write(client, rest)
        if mask & ~select.EPOLLOUT:
            self._read(fd, client)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self.listener.accept()
            except BlockingIOError:
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            self.clients[sock.fileno()] = Client(sock)
            self.poll.register(sock, select.EPOLLIN)

    def _read(self, fd: int, client: Client) -> None:
        try:
            data, notes, _, _ = client.sock.recvmsg(1 << 16, 64)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.poll.unregister(fd)
            del self.clients[fd]
            client.sock.close()
            return
        at_ns = monotonic_ns()
        for _, kind, told in notes:
            if kind == SO_TIMESTAMPNS:
                seconds, nanoseconds = struct.unpack("@qq", told)
                at_ns = min(at_ns, seconds * 1_000_000_000 + nanoseconds + self.apart_ns)
        client.came += data
        self._requests(client, at_ns)

    def _requests(self, client: Client, at_ns: int) -> None:
        while (end := client.came.find(b"\r\n\r\n")) >= 0:
            head = bytes(client.came[: end + 2])
            length = LENGTH.search(head)
            size = end + 4 + (int(length[1]) if length else 0)
            if len(client.came) < size:
                return
            is_streamed = STREAMED.search(client.came, end, size) is not None
            del client.came[:size]
            self._request(client, head, at_ns, is_streamed=is_streamed)

    def _request(self, client: Client, head: bytes, at_ns: int, *, is_streamed: bool) -> None:
        if head.startswith(b"POST ") and b"/chat/completions" in head:
            self._begin(client, head, at_ns, is_streamed=is_streamed)
        elif b"/models" in head[:40]:
            self._write(client, _plain({"object": "list", "data": [{"id": "paced", "object": "model"}]}))
        else:
            self._write(client, _plain({}))

    def _begin(self, client: Client, head: bytes, at_ns: int, *, is_streamed: bool) -> None:
        asked_id = ASKED_ID.search(head)
        is_first = self.begun < self.options.wave
        extra_ms = self.rng.uniform(0, self.options.spread_ms) if is_first else 0.0
        name = asked_id[1].decode() if asked_id else f"n{self.begun}"
        due_ns = at_ns + int((self.options.ttft_ms + extra_ms) * 1e6)
        chunks = self.options.chunks if is_streamed else 1
        word = framed(OPENING % name.encode() + WORD)
        answer = Answer(name, at_ns, chunks, due_ns, word, client.sock.fileno(), is_streamed)
        client.answer = answer
        self.begun += 1
        if self.options.record:
            self.answers.append(answer)
        heapq.heappush(self.queue, (due_ns, self.begun, answer))

    def record(self) -> dict[str, Any]:
        """What was done, request by request in the order in which they came."""
        keys = ("asked_id", "arrived_ns", "chunks", "due_ns", "sent_ns")
        told = [{key: getattr(answer, key) for key in keys} for answer in self.answers]
        return {"gap_ns": self.gap_ns, "late_reads": self.late_reads, "answers": told}


def framed(data: bytes) -> bytes:
    """As one chunk of HTTP's chunked encoding."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def _plain(content: Any) -> bytes:
    body = json.dumps(content).encode()
    return JSON_HEAD % len(body) + body


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.paced", description=__doc__.partition("\n")[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: any that is free")
    parser.add_argument("--record", type=Path, help="where the truth is written at the end")
    parser.add_argument("--ttft-ms", type=float, default=50.0)
    parser.add_argument("--gap-ms", type=float, default=20.0)
    parser.add_argument("--chunks", type=int, default=50, help="of each answer")
    parser.add_argument("--spread-ms", type=float, default=0.0)
    parser.add_argument("--wave", type=int, default=0, help="how many requests are spread")
    parser.add_argument("--seed", type=int, default=1)
    server = Server(parser.parse_args())
    signal.signal(signal.SIGTERM, lambda *_: setattr(server, "is_stopped", True))
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1)  # in ns; 50,000 by default
    print(server.listener.getsockname()[1], flush=True)
    gc.disable()  # nothing here is cyclic; a collection would be a pause
    server.serve()
    if server.options.record:
        server.options.record.write_text(json.dumps(server.record()), encoding="utf-8")


if __name__ == "__main__":
    main()
