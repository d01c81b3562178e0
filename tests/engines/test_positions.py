"""The memory in which ranks record their calls."""

from __future__ import annotations

from pathlib import Path

from meshlab.engines._positions import Position, Positions


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
