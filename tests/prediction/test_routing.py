"""The routing of a job: its traffic against the calls of a step, a simulation of tokens, and the search."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshlab as ml
from meshlab.base._errors import MeshlabError
from tests.examples import examples

JOB = ml.Job(
    layers=4, hidden=1024, heads=8, sequence=4096, global_batch=64, experts=32, top_k=4, expert_hidden=512, skew=0.7
)


def hosts_of(nodes: int) -> ml.Cluster:
    return ml.preset("dgx-h100", nodes=nodes)


@pytest.mark.parametrize(
    ("mesh", "experts"),
    [("ep=8", None), ("dp=2, ep=8", None), ("dp=2, ep=4, tp=2", None), ("dp=8, tp=2", "edp=2, ep=8")],
)
def test_balanced_experts_have_the_calls_of_a_step(mesh: str, experts: str | None) -> None:
    job = JOB.replace(skew=0.0, dispatch_dtype="float8_e4m3fn")
    routing = job.routing(mesh, experts=experts)
    calls = {call.what: call.size_bytes for call in job.step(mesh, experts) if call.collective == "all_to_all"}
    assert routing.dispatch.size_bytes == calls["tokens"]
    assert routing.combine.size_bytes == calls["tokens, back"]
    assert routing.imbalance == routing.dispatch.imbalance == 1.0
    assert len(set(routing.dispatch.array.ravel().tolist())) == 1


def test_an_uneven_dispatch_has_the_bytes_of_all_copies() -> None:
    routing = JOB.routing("ep=8")
    token = JOB.hidden * 2
    assert routing.dispatch.total_bytes == pytest.approx(8 * 4096 * 4 * token, rel=1e-6)
    assert routing.dispatch.transpose().array == pytest.approx(routing.combine.array, abs=1)
    assert routing.rank_tokens.sum() == pytest.approx(8 * 4096 * 4)
    assert routing.dispatch.received_bytes == pytest.approx(routing.rank_tokens * token, rel=1e-6)
    frame = routing.frame()
    assert frame["share"].max() == pytest.approx(routing.imbalance)
    assert frame["network_bytes"].eq(0).all()


def simulated(routing: Any, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The shares of tokens that reach each host and each rank, if a router draws their experts."""
    job, random = routing.job, np.random.default_rng(3)
    scores = np.log(routing.shares[0]) + random.gumbel(size=(count, job.experts))
    if job.expert_hosts is not None:
        of_expert = routing.hosts[np.arange(job.experts) * routing.n_ranks // job.experts]
        best = np.stack([scores[:, of_expert == host].max(axis=1) for host in range(routing.hosts.max() + 1)], axis=1)
        others = np.argsort(-best, axis=1)[:, job.expert_hosts :]
        scores[(of_expert[None, :, None] == others[:, None, :]).any(axis=2)] = -np.inf
    chosen = np.argpartition(-scores, job.top_k, axis=1)[:, : job.top_k]
    ranks = chosen * routing.n_ranks // job.experts
    to_rank = np.zeros((count, routing.n_ranks), dtype=bool)
    to_rank[np.arange(count)[:, None], ranks] = True
    to_host = np.stack(
        [to_rank[:, routing.hosts == host].any(axis=1) for host in range(routing.hosts.max() + 1)], axis=1
    )
    return to_host.mean(axis=0), to_rank.mean(axis=0)


@pytest.mark.parametrize("limit", [None, 2])
def test_one_copy_per_host_is_near_a_simulation(limit: int | None) -> None:
    job = JOB.replace(expert_hosts=limit, skew=0.2)
    routing = job.routing("ep=32", hosts_of(4), copies="host")
    to_host, _ = simulated(routing, 20_000)
    token, tokens = job.hidden * 2, 4096
    away = np.where(routing.hosts[:, None] != routing.hosts, routing.dispatch.array, 0) / token / tokens
    for host in range(4):
        copies = away[:, routing.hosts == host].sum() / np.count_nonzero(routing.hosts != host)
        assert copies == pytest.approx(to_host[host], abs=0.05)
    assert routing.host_copies == pytest.approx(to_host.sum(), rel=0.06)
    assert routing.host_copies <= (limit or 4)


def test_a_copy_for_a_host_is_passed_on_by_the_rank_at_the_same_place() -> None:
    routing = JOB.replace(expert_hosts=2).routing("ep=32", hosts_of(4))
    assert routing.copies == "host"
    sender, receiver = np.nonzero(routing.dispatch.array)
    crosses = routing.hosts[sender] != routing.hosts[receiver]
    assert (sender[crosses] % 8 == receiver[crosses] % 8).all()
    loads = routing.loads()
    nic, frame = loads.of("nic"), routing.frame()
    assert nic is not None
    assert nic.bytes.max() == frame["network_bytes"].max()
    by_expert = JOB.routing("ep=32", hosts_of(4)).loads().of("nic")
    assert by_expert is not None
    assert nic.bytes.max() < 0.6 * by_expert.bytes.max()


def test_a_copy_per_rank_is_less_than_one_per_expert() -> None:
    sizes = [
        JOB.routing("ep=8", hosts_of(1), copies=copies).dispatch.total_bytes for copies in ("host", "rank", "expert")
    ]
    assert sizes[0] == sizes[1] < sizes[2]


@settings(max_examples=examples(40), deadline=None)
@given(data=st.data())
def test_a_better_placement_never_makes_the_largest_load_worse(data: st.DataObject) -> None:
    n, nodes = data.draw(st.sampled_from([(4, 1), (8, 1), (16, 2), (32, 4)]))
    limit = data.draw(st.sampled_from([None, 2]))
    counts = np.random.default_rng(data.draw(st.integers(0, 1 << 20))).integers(1, 12, (n, 32))
    routing = JOB.replace(skew=0.0, expert_hosts=limit).routing(f"ep={n}", hosts_of(nodes), skew=counts)
    replicas = n * data.draw(st.integers(0, 2))
    better = routing.balanced(replicas)
    assert better.imbalance <= routing.imbalance * (1 + 1e-9)
    assert better.rank_tokens.sum() == pytest.approx(routing.rank_tokens.sum())
    assert better.replicas == replicas
    if limit:
        for host in range(nodes):
            members = routing.hosts == host
            assert set(better.slots[members].ravel().tolist()) == set(routing.slots[members].ravel().tolist())


def test_a_histogram_per_rank_keeps_the_rows_of_the_ranks() -> None:
    counts = np.ones((8, 32))
    counts[0], counts[:, 5] = 3, 4
    routing = JOB.routing("ep=8", skew=counts)
    sent = routing.dispatch.sent_bytes
    assert sent[0] == pytest.approx(sent[1] * counts[0].sum() / counts[1].sum(), rel=1e-6)
    assert int(routing.rank_tokens.argmax()) == 1  # which has expert 5


def test_a_traffic_is_predicted_and_has_links() -> None:
    placement = ml.place("ep=16", hosts_of(2))
    routing = JOB.routing(placement)
    line = ml.predict(placement, axis="ep", traffic=routing.dispatch).lines[0]
    even = ml.predict(placement, axis="ep", traffic=JOB.routing(placement, skew=0).dispatch).lines[0]
    assert line.time_us[0] > 1.2 * even.time_us[0]
    assert line.busiest_nic == routing.loads().busiest_nic
    assert "busiest NIC" in ml.predict(placement, axis="ep", traffic=routing.dispatch).explain()
    assert line.busiest_nic in routing.explain()


# -- the search --------------------------------------------------------------------------------------------------------

# Sums of the seconds and the memory of all layouts, as before jobs had a skew.
BEFORE = {
    ("mixtral-8x7b", 16): ("0x1.6a73c7d08d342p+16", "0x1.e86d3449e6666p+16", "0x1.d0d727e653308p+9"),
    ("deepseek-v3", 64): ("0x1.6495bd17864ccp+24", "0x1.8810cc6d0913bp+21", "0x1.a2d4aa044ca78p+19"),
}


@pytest.mark.parametrize(("model", "nodes"), BEFORE)
def test_balanced_searches_are_unchanged_to_the_last_digit(model: str, nodes: int) -> None:
    frame = ml.search(hosts_of(nodes), model).frame()
    assert tuple(float(frame[name].sum()).hex() for name in ("step_s", "memory_gib", "ep_s_hi")) == BEFORE[model, nodes]


def test_a_skew_makes_steps_longer_and_prefers_fewer_ranks_of_ep() -> None:
    cluster = hosts_of(8)
    job = ml.Job.preset("mixtral-8x7b")
    even, uneven = (ml.search(cluster, job.replace(skew=skew)).frame() for skew in (0.0, 1.0))
    assert uneven["step_s"][0] > even["step_s"][0]
    both = even.merge(uneven, on=["mesh", "experts"], suffixes=("", "_skewed"))
    spread, alone = both[both["ep"] == 8], both[both["ep"] == 1]
    assert (spread["memory_gib_skewed"] > spread["memory_gib"]).all()
    assert spread["compute_s_skewed"].iloc[0] > 1.5 * spread["compute_s"].iloc[0]
    assert (alone["step_s_skewed"] == alone["step_s"]).all()
    assert uneven["ep"][0] <= even["ep"][0]
    step = ml.prediction.step_time(job.replace(skew=1.0), "dp=8, ep=8", cluster)
    assert step.seconds > ml.prediction.step_time(job, "dp=8, ep=8", cluster).seconds


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mesh": "dp=8"}, "all experts are on each rank of dp=8, so no tokens are exchanged"),
        ({"skew": -1}, "skew must be a number from 0 to 100"),
        ({"skew": [1, 2]}, "2 numbers of tokens do not match the 32 experts"),
        ({"skew": np.ones((3, 32))}, "tokens of 3 ranks and 32 experts do not match the 8 ranks of ep"),
        ({"skew": np.ones((2, 8, 32))}, "tokens of 2 ranks and 32 experts do not match"),
        ({"copies": "host"}, "a copy per host needs a cluster"),
        ({"copies": "node"}, "unknown copies 'node'; choose one of expert, rank, host"),
    ],
)
def test_a_wrong_routing_is_explained(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(MeshlabError) as error:
        JOB.routing(**{"mesh": "ep=8", **arguments})
    assert str(error.value).startswith(message)


def test_other_wrong_calls_are_explained() -> None:
    with pytest.raises(MeshlabError, match="Llama 3 8B has no experts, so it routes no tokens"):
        ml.Job.preset("llama3-8b").routing("dp=8")
    routing = JOB.routing("ep=8")
    with pytest.raises(MeshlabError, match="a routing without a cluster has no links"):
        routing.loads()
    with pytest.raises(MeshlabError, match="unknown exchange 'both'"):
        JOB.routing("ep=8", hosts_of(1)).loads("both")  # type: ignore[arg-type]
    with pytest.raises(MeshlabError, match="replicas must be an integer of at least 0"):
        routing.balanced(1.5)  # type: ignore[arg-type]
    with pytest.raises(MeshlabError, match="300 replicas are more than the 224 slots"):
        routing.balanced(300)


def test_a_traffic_of_another_size_or_collective_is_explained() -> None:
    cluster = hosts_of(2)
    with pytest.raises(MeshlabError, match="is for 8 ranks, but the mesh has groups of 16 \\(ep\\)"):
        ml.predict("ep=16", cluster, traffic=JOB.routing("ep=8").dispatch)
    with pytest.raises(MeshlabError, match="is for 8 ranks, but the group has 16"):
        ml.place("ep=16", cluster).loads("ep", traffic=JOB.routing("ep=8").dispatch)
    with pytest.raises(MeshlabError, match="all_reduce has no traffic"):
        ml.predict("ep=16", cluster, "all_reduce", traffic="even")
    with pytest.raises(MeshlabError, match="all_reduce has no traffic"):
        ml.place("ep=16", cluster).loads("ep", collective="all_reduce", traffic="even")
    with pytest.raises(MeshlabError, match="the traffic 'even' sends no bytes"):
        ml.predict("ep=16", cluster, sizes=1, traffic="even")


def test_placements_with_the_same_busiest_nic_take_the_same_time() -> None:
    """Also if their sizes differ, which are those of the busiest rank inside NVLink."""
    placement = ml.place("ep=32", hosts_of(4))
    routing = JOB.replace(expert_hosts=2, skew=0.4, hidden=8192).routing(placement)
    better = routing.balanced(32)
    assert better.dispatch.size_bytes < routing.dispatch.size_bytes
    assert better.loads().limit == routing.loads().limit == "nic"
    times = [ml.predict(placement, axis="ep", traffic=part.dispatch).lines[0].time_us[0] for part in (routing, better)]
    assert times[0] == pytest.approx(times[1], rel=1e-6)
