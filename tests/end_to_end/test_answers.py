"""Answers of a service that is idle, or nearly, over real sockets: whoever sends them, they come whole and in order."""

from __future__ import annotations

import random
import socket
import threading

import pytest
from tokenizers import Tokenizer as Reference

from tests.end_to_end.harness import LIMIT_S, ServiceProcess, Wire, encode

HEALTH = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "über", "漢字", "42", "...", "😀", ""]
SMALL, LARGE = (1, 10, 10, 300), 60_000
"""Numbers of words; a socket does not take a large answer at once."""


def asks(service: ServiceProcess, reference: Reference, uds: bool, seed: int, n_steps: int, wrong: list[str]) -> None:
    """One client: requests alone, in bursts behind each other, with large answers that are read late."""
    rng = random.Random(seed)
    with service.connect(uds) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 17)
        wire = Wire(sock)
        for step in range(n_steps):
            n_behind = rng.choice([0, 0, 0, 1, 4])
            # Nobody reads while a burst is sent: only the last answer may be a large one.
            sizes = [*rng.choices(SMALL, k=n_behind), rng.choice([*SMALL, LARGE])]
            texts = [" ".join(rng.choices(WORDS, k=n_words)) for n_words in sizes]
            health = len(texts) > 1 and rng.random() < 0.5
            sock.sendall(b"".join([encode(text) for text in texts]) + HEALTH * health)
            for text in texts:
                answer = wire.read()
                if answer.status != 200 or answer.json["ids"] != reference.encode(text).ids:
                    wrong.append(f"client {seed}, step {step}: {answer.status}")
            if health and wire.read().status != 200:
                wrong.append(f"client {seed}, step {step}: health")


@pytest.mark.parametrize("n_clients", [1, 3])
@pytest.mark.parametrize("uds", [False, True])
def test_answers_come_whole_and_in_order(
    service: ServiceProcess, reference: Reference, uds: bool, n_clients: int
) -> None:
    """Every answer is the one to its request, and every request is counted."""
    wrong: list[str] = []
    clients = [
        threading.Thread(target=asks, args=(service, reference, uds, seed, 8, wrong)) for seed in range(n_clients)
    ]
    for client in clients:
        client.start()
    for client in clients:
        client.join(LIMIT_S)
        assert not client.is_alive()
    assert wrong == []
    assert service.in_flight == 0


def test_each_request_is_counted_before_the_next(service: ServiceProcess) -> None:
    """A scrape behind an answer knows of it, on whichever connection it comes."""
    with service.connect() as sock:
        wire = Wire(sock)
        before = counted(service)
        for number in range(1, 20):
            assert wire.ask(encode(f"number {number}")).status == 200
            assert counted(service) == before + number


def counted(service: ServiceProcess) -> float:
    """Requests that went well."""
    counts = service.metrics().get("sidetok_request_duration_seconds_count", {})
    return sum(value for key, value in counts.items() if dict(key)["outcome"] == "ok")


def test_a_client_that_waits_for_the_end(service: ServiceProcess) -> None:
    """Who asks to close the connection gets the whole answer and the end of the stream."""
    text = "word " * 50_000
    with service.connect() as sock:
        data = encode(text)
        sock.sendall(data.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n", 1))
        received = b""
        while piece := sock.recv(1 << 16):
            received += piece
    head, body = received.split(b"\r\n\r\n", 1)
    assert b"content-length: %d" % len(body) in head
