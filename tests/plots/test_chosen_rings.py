"""The rings that NCCL chose beside the ring that the mesh wants."""

from __future__ import annotations

import matplotlib.style
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import meshlab as ml
from meshlab.base._errors import MeshError, TopologyError
from meshlab.diagnosis._explanation import Explanation
from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis._seen import Seen
from meshlab.plots._chosen_rings import _orders, _ranges
from tests.examples import examples


def rings(*orders: list[int], comm: str | None = None, channels: list[int] | None = None) -> pd.DataFrame:
    rows = [
        (comm, channel, rank, after)
        for channel, order in zip(channels or range(len(orders)), orders, strict=True)
        for rank, after in zip(order, [*order[1:], order[0]], strict=True)
    ]
    return pd.DataFrame(rows, columns=["comm", "channel", "rank", "next"]).astype({"channel": "Int64", "rank": "Int64"})


def explanation(chosen: pd.DataFrame, hosts: list[str], via: dict[bool, str]) -> Explanation:
    """Return an explanation with the tables of a log: `via` has the transport inside a host (True) and between "
    "hosts."""
    communicators = pd.DataFrame({"comm": chosen["comm"].iloc[0], "rank": range(len(hosts)), "host": hosts})
    channels = chosen.rename(columns={"next": "peer"}).assign(direction="send")
    channels["via"] = [via[hosts[a] == hosts[b]] for a, b in zip(chosen["rank"], chosen["next"], strict=True)]
    tables = {"rings": chosen, "communicators": communicators, "channels": channels}
    seen = Seen(frames={name: (lambda name=name: tables[name]) for name in tables})
    return Explanation(Paste(""), (), (), (seen,))


def texts(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.texts]


def legend(ax: Axes) -> list[str]:
    found = ax.get_legend()
    assert found is not None
    return [text.get_text() for text in found.get_texts()]


def test_channels_with_one_order_share_a_circle_and_hops_between_hosts_are_counted() -> None:
    hosts = ["a", "b"] * 4
    good, poor = [0, 2, 4, 6, 1, 3, 5, 7], list(range(8))
    found = explanation(rings(poor, good, poor, comm="0x1"), hosts, {True: "P2P/CUMEM", False: "NET/IB/GDRDMA"})
    ax = ml.plot.ring(found, mesh="dp=8", ax=Figure((12, 6)).add_subplot())
    captions = [text for text in texts(ax) if ":" in text]
    assert captions == [
        "NCCL: channels 0, 2\n8 hops between hosts, 2 would do",
        "NCCL: channel 1\n2 hops between hosts",
        "Mesh: dp_0, host by host\n2 hops between hosts",
    ]
    assert (
        ax.get_title(loc="left").replace("\n", " ").endswith("3 channels, 2 with more hops between hosts than needed")
    )
    assert legend(ax) == ["hop inside a host · P2P/CUMEM", "hop between hosts · NET/IB/GDRDMA"]


def test_transports_differ_by_more_than_colour() -> None:
    found = explanation(rings([0, 1, 2, 3], comm="0x1"), ["a", "a", "b", "b"], {True: "SHM", False: "NET/Socket"})
    ax = ml.plot.ring(found, ax=Figure((8, 6)).add_subplot())
    assert legend(ax) == ["hop inside a host · SHM", "hop between hosts without GPU Direct RDMA · NET/Socket"]
    lines = ax.get_legend().get_lines()  # type: ignore[union-attr]
    assert len({line._unscaled_dash_pattern for line in lines}) == 2  # type: ignore[attr-defined]


def test_ranks_have_the_numbers_of_the_mesh() -> None:
    ax = ml.plot.ring(rings([0, 2, 1, 3]), mesh="dp=4, tp=2", axis="dp_1", ax=Figure((8, 5)).add_subplot())
    assert {text for text in texts(ax) if text.isdigit()} == {"1", "3", "5", "7"}
    assert "not in the order of dp_1" in ax.get_title(loc="left")


def test_the_communicator_of_the_size_of_the_group_is_drawn() -> None:
    both = pd.concat([rings(list(range(8)), comm="0xa"), rings([0, 1, 2, 3], comm="0xb")])
    assert "for 8 ranks" in ml.plot.ring(both, ax=Figure((8, 5)).add_subplot()).get_title(loc="left")
    title = ml.plot.ring(both, mesh="dp=2, tp=4", axis="tp", ax=Figure((8, 5)).add_subplot()).get_title(loc="left")
    assert "for 4 ranks" in title
    assert "in the order of tp_0" in title
    assert "for 4 ranks" in ml.plot.ring(both, comm="0xb", ax=Figure((8, 5)).add_subplot()).get_title(loc="left")


def test_many_orders_and_incomplete_rings_are_counted() -> None:
    orders = [list(np.random.default_rng(k).permutation(6)) for k in range(6)]
    chosen = pd.concat([rings(*orders), rings([0, 1, 2, 3, 4, 5], channels=[9]).iloc[:-1]])
    title = ml.plot.ring(chosen, ax=Figure((10, 5)).add_subplot()).get_title(loc="left").replace("\n", " ")
    assert "more order" in title
    assert "1 incomplete" in title


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.permutations(range(7)), min_size=1, max_size=5), st.randoms())
def test_orders_are_found_whatever_the_order_of_the_rows(orders: list[list[int]], random: object) -> None:
    chosen = rings(*orders).sample(frac=1, random_state=random.randrange(1 << 30))  # type: ignore[attr-defined]
    found, broken = _orders(chosen)
    assert broken == 0
    by_channel = {channel: order for order, channels in found.items() for channel in channels}
    for channel, order in enumerate(orders):
        start = order.index(0)
        assert by_channel[channel] == (*order[start:], *order[:start])


@pytest.mark.parametrize("size", [(5, 4), (12, 4), (4, 9), (10, 10)])
@pytest.mark.parametrize("style", ["default", "dark_background"])
def test_nothing_is_drawn_outside_of_the_figure(size: tuple[float, float], style: str) -> None:
    hosts = ["node-with-a-name-0", "node-with-a-name-1"] * 8
    chosen = rings(list(range(16)), [*range(0, 16, 2), *range(1, 16, 2)], comm="0x1")
    found = explanation(chosen, hosts, {True: "P2P/IPC", False: "NET/IB"})
    with matplotlib.style.context(style):
        figure = Figure(size)
        ax = ml.plot.ring(found, mesh="dp=16", ax=figure.add_subplot())
        figure.draw_without_rendering()
        for text in [*ax.texts, ax.get_legend()]:
            box = text.get_window_extent()  # type: ignore[union-attr]
            assert box.x0 >= -1
            assert box.x1 <= figure.bbox.x1 + 1
            assert box.y0 >= -1
            assert box.y1 <= figure.bbox.y1 + 1


def test_errors_say_what_fits() -> None:
    with pytest.raises(TopologyError, match="no complete ring with 8 ranks") as error:
        ml.plot.ring(rings([0, 1, 2, 3]), mesh="tp=8")
    assert "4 ranks" in (error.value.hint or "")
    with pytest.raises(TopologyError, match="no rings of NCCL"):
        ml.plot.ring(ml.explain("ulimit -l\n64\n"))
    with pytest.raises(TopologyError, match="no column 'next'"):
        ml.plot.ring(pd.DataFrame({"channel": [0], "rank": [0]}))
    with pytest.raises(TopologyError, match="mesh= and comm= are for the rings in a log"):
        ml.plot.ring("tp=8", "dgx-h100", mesh="tp=8")  # type: ignore[call-overload]
    with pytest.raises(MeshError):
        ml.plot.ring(rings([0, 1, 2, 3]), mesh="tp=4", axis="pp")


def test_channels_are_named_as_ranges() -> None:
    assert _ranges([0, 1, 2, 5]) == "0–2, 5"
