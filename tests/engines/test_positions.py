"""The memory in which ranks record their calls."""

from __future__ import annotations

import json
import socket
import struct
from pathlib import Path

import pytest

import meshlab as ml
from meshlab.engines._position_lines import PositionLines, connect
from meshlab.engines._positions import Position, Positions
from meshlab.engines._rounds import RankInfo, exit_of


def test_the_client_reads_what_a_rank_writes_into_the_file(tmp_path: Path) -> None:
    Positions.create_file(tmp_path / "calls", 3)
    client, rank = (Positions(3, tmp_path / "calls") for _ in range(2))
    writer = rank.writer(1)
    tp, dp = (writer.monitor(name) for name in ("tp_0", "dp_0"))
    assert [position.calls for position in client.read()] == [0, 0, 0]
    before = client.read()
    tp.enter(tp.code("all_reduce"), 0)
    tp.leave(tp.code("all_reduce"))
    dp.enter(dp.code("batch"), 0)
    assert str(client.read()[1]) == "batch (call 1) of dp_0"
    assert client.read()[1].is_inside
    dp.leave(dp.code("batch"))
    tp.enter_message(tp.code("recv"), 0)
    assert (str(client.read()[1]), client.read()[1].calls) == ("recv of tp_0", 2)
    after = client.read()[1].since(before[1])
    assert (after.calls, after.number, after.is_inside) == (2, 0, True)
    assert client.read()[0].since(before[0]).calls == 0
    assert not rank.should_abort()
    client.abort()
    assert rank.should_abort()


def test_numbers_count_from_an_earlier_position() -> None:
    positions = Positions(1)
    monitor = positions.writer(0).monitor("tp_0")
    for _ in range(3):
        monitor.enter(monitor.code("barrier"), 0)
    before = positions.read()[0]
    monitor.enter(monitor.code("barrier"), 0)
    assert str(positions.read()[0].since(before)) == "barrier (call 1) of tp_0"
    assert positions.read()[0].since(Position()) == Position()  # unknown


def test_communicators_that_are_gone_make_room_for_others() -> None:
    positions = Positions(1)
    writer = positions.writer(0)
    for number in range(200):
        monitor = writer.monitor(f"group {number}")
        monitor.enter(monitor.code("split"), 0)
        assert str(positions.read()[0]).endswith(f"of group {number}")
    monitors = [writer.monitor(f"open {number}") for number in range(100)]
    monitors[-1].enter(monitors[-1].code("barrier"), 0)
    assert positions.read()[0].group == "another communicator"
    assert positions.read()[0].calls == writer.calls == 201


def test_a_position_travels_as_plain_data() -> None:
    positions = Positions(2)
    monitor = positions.writer(1).monitor("größe_0")
    monitor.enter(monitor.code("barrier"), 0)
    position = positions.read()[1]
    again = Position.of_document(json.loads(json.dumps(position.to_document())))
    assert again == position
    assert again.has_opened("größe_0")


def info(rank: int, host: str) -> RankInfo:
    can = ml.comm.Capabilities("mpi", "MPICH", "", "MPI", (), (), (), (), True, {})
    return RankInfo(rank, 5, host, 100 + rank, 1, "3.12", "0.1", can)


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([1], "rank 1 disconnected"),
        ([2, 3], "h2 does not answer: ranks 2, 3 disconnected"),
        ([1, 2, 3], "rank 1 disconnected, and h2 does not answer: ranks 2, 3 disconnected"),
        ([2, 4], "rank 2 and rank 4 disconnected"),  # the process or the host of rank 4
        ([0, 1, 2, 3, 4], "all ranks disconnected"),
    ],
)
def test_ranks_that_are_gone_are_named_by_their_host(ranks: list[int], text: str) -> None:
    infos = [info(rank, host) for rank, host in enumerate(["h1", "h1", "h2", "h2", "h3"])]
    assert exit_of(ranks, infos, "disconnected").text == text


def test_a_line_to_a_rank_carries_its_position_and_silence() -> None:
    with ml.launch(2, backend="threads") as engines:
        worker = engines._rank_set._threads[1]._worker  # type: ignore[attr-defined]
        lines = PositionLines(2)
        _, port, token = lines.invitation
        assert not connect(([], port, token), worker)
        assert connect((["127.0.0.1"], port, token), worker)
        stranger = socket.create_connection(("127.0.0.1", port))
        stranger.sendall(b"x" * 8)
        silent = socket.create_connection(("127.0.0.1", port))
        silent.sendall(struct.pack("<II", 7, len(token)) + token)
        lines.accept(2)
        assert lines.ask() == {1: worker.position(), 7: None}
        for line in (stranger, silent):
            line.close()
        lines.close()
