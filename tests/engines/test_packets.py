"""Packets of full size, over the loopback device. `tests/hosts` has paths that lose them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from meshlab.engines import _packets as packets


@pytest.fixture
def port() -> Iterator[int]:
    """A port that answers datagrams."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        line.bind(("127.0.0.1", 0))
        threading.Thread(target=packets.answer_datagrams, args=(line,), daemon=True).start()
        yield line.getsockname()[1]


def test_packets_of_a_path_that_carries_them_are_not_lost(port: int) -> None:
    assert packets.lost_size("127.0.0.1", port, 9000) == 0
    assert packets.lost_size("127.0.0.1", limit=9000) == 0  # the kernel refuses them
    assert packets.loss_text("localhost") == ""


def test_a_host_without_an_address_or_an_answer_has_no_lost_packets() -> None:
    assert packets.loss_text("::1") == ""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        assert packets.lost_size("127.0.0.1", silent.getsockname()[1]) == 0


@pytest.mark.parametrize("limit", [100, 101, 600, 1499])
def test_the_largest_size_that_arrives_is_exact(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(packets, "_arrives", lambda address, port, size: size <= limit)
    assert packets.lost_size("127.0.0.1", 9, 1500) == 1500
    assert packets.largest_size("127.0.0.1", 9, 1500) == limit
