"""Dumps of the flight recorder: every form of JSON, and simulated jobs in which one rank stops."""

from __future__ import annotations

import json
import pickle
import pprint
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshlab as ml
from meshlab.base._errors import ParseError
from meshlab.base._numerals import LARGEST
from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis.formats._flight_recorder import FLIGHT_RECORDER, n_elements, read_flight_dumps
from meshlab.diagnosis.rules._hangs import HANG_RULES, dumps_missing, order_mismatch, rank_missing, size_mismatch
from meshlab.diagnosis.rules._timeouts import TIMEOUT_RULES, nccl_timeout
from tests.examples import examples


def entry(
    seq: int, op: str = "all_reduce", *, group: str = "0", state: str = "completed", size: int = 8, **more: Any
) -> dict[str, Any]:
    """A call as the recorder writes it."""
    return {
        "record_id": seq - 1,
        "pg_id": int(group),
        "process_group": [group, "default_pg" if group == "0" else "undefined"],
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": seq,
        "profiling_name": f"nccl:{op}",
        "time_created_ns": 1_700_000_000_000_000_000 + seq,
        "input_sizes": [[size]],
        "input_dtypes": ["Float"],
        "output_sizes": [[size]],
        "output_dtypes": ["Float"],
        "state": state,
        "timeout_ms": 600000,
        "is_p2p": False,
        "retired": state == "completed",
        **more,
    }


def dump(
    entries: Sequence[Mapping[str, Any]], groups: Mapping[str, Sequence[int]], *, version: str = "2.4"
) -> dict[str, Any]:
    """A dump of one rank."""
    last = max((entry["collective_seq_id"] for entry in entries if entry["process_group"][0] == "0"), default=-1)
    status = {"last_enqueued_collective": str(last), "last_completed_collective": str(last)}
    config = {name: {"name": name, "desc": "default_pg", "ranks": str(list(ranks))} for name, ranks in groups.items()}
    return {"version": version, "pg_config": config, "pg_status": {"0": status}, "entries": list(entries)}


LATE = {0: dump([entry(5), entry(6, state="started")], {"0": [0, 1]}), 1: dump([entry(4), entry(5)], {"0": [0, 1]})}


def forms() -> dict[str, str]:
    """Two dumps in every form in which people paste them."""
    first, second = LATE.values()
    return {
        "lines": f"{json.dumps({'rank': 0, 'dump': first})}\n{json.dumps({'rank': 1, 'dump': second})}\n",
        "indented": f"{json.dumps({'rank': 0, **first}, indent=1)}\n{json.dumps({'rank': 1, **second}, indent=1)}",
        "without a line break": json.dumps(first) + json.dumps(second),
        "list": json.dumps([{"rank": rank, **content} for rank, content in LATE.items()]),
        "object": json.dumps({str(rank): content for rank, content in LATE.items()}),
        "names of files": json.dumps({f"nccl_trace_rank_{rank}": content for rank, content in LATE.items()}),
        "head": "\n".join(
            f"==> fr/nccl_trace_rank_{rank}.json <==\n{json.dumps(content)}" for rank, content in LATE.items()
        ),
        "printed by Python": f">>> pickle.load(file)\n{first}\n>>> don't\n{second}",
        "printed in a loop": f"0 {first}\n1 {second}",
        "printed with tuples": str([first, second]).replace("[[64]]", "((64,),)"),
        "pprint": pprint.pformat([first, second]),
        "in a log": f"train.py started\nrank 0:\n{json.dumps(first, indent=2)}\nrank 1:\n{json.dumps(second)}\nbye",
    }


@pytest.mark.parametrize("form", forms())
def test_dumps_are_read_in_every_form(form: str) -> None:
    paste = Paste(forms()[form])
    dumps = read_flight_dumps(paste)
    assert [(recorded.rank, recorded.last_seq("0"), len(recorded.calls)) for recorded in dumps] == [
        (0, 6, 2),
        (1, 5, 2),
    ]
    assert FLIGHT_RECORDER.find(paste)
    (finding,) = rank_missing(paste)
    assert finding.subject == "rank 1, all_reduce 6 of default_pg"


def test_the_order_of_dumps_without_ranks_is_said() -> None:
    (finding,) = rank_missing(Paste(forms()["without a line break"]))
    assert "numbered in the order of the text" in finding.why
    (finding,) = rank_missing(Paste(forms()["lines"]))
    assert "numbered in the order" not in finding.why


def test_a_rank_in_reverse_order_is_found_by_its_name() -> None:
    text = "\n".join(json.dumps({"rank": rank, **LATE[rank]}) for rank in (1, 0))
    (finding,) = rank_missing(Paste(text))
    assert "rank 1" in finding.subject


@pytest.mark.parametrize("version", ["2.0", "2.4", "2.10"])
def test_numbers_and_strings_of_all_versions_are_read(version: str) -> None:
    content = dump([entry(3)], {"0": [0]}, version=version)
    if version == "2.0":  # neither status nor frames
        del content["pg_status"]
    if version == "2.10":
        content["pg_status"] = {"0": {"last_enqueued_collective": 3, "last_completed_collective": 3}}
    (recorded,) = read_flight_dumps(Paste(json.dumps(content)))
    assert recorded.last_seq("0") == 3
    assert recorded.groups["0"].last_enqueued == (None if version == "2.0" else 3)


def test_a_dump_that_is_cut_keeps_its_calls_and_blames_nobody() -> None:
    late = json.dumps({"rank": 1, **dump([entry(number) for number in range(1, 9)], {"0": [0, 1]})}, indent=1)
    del (ahead := dump([entry(9, state="started")], {"0": [0, 1]}))["pg_status"]
    cut = late[: late.rindex('"record_id"')].replace('"pg_status"', '"unknown"')
    paste = Paste(json.dumps({"rank": 0, **ahead}) + "\n" + cut)
    whole, part = read_flight_dumps(paste)
    assert (whole.is_complete, part.is_complete, len(part.calls)) == (True, False, 7)
    assert not list(rank_missing(paste))


def test_different_collectives_under_one_number_are_found() -> None:
    text = json.dumps(
        [
            {"rank": 0, **dump([entry(1), entry(2, "all_reduce", state="started")], {"0": [0, 1]})},
            {"rank": 1, **dump([entry(1), entry(2, "_allgather_base", state="started")], {"0": [0, 1]})},
        ]
    )
    (finding,) = order_mismatch(Paste(text))
    assert finding.subject == "rank 0: all_reduce, rank 1: all_gather at collective 2 of default_pg"
    assert not list(rank_missing(Paste(text)))


def test_different_sizes_and_types_are_found_and_uneven_collectives_are_not() -> None:
    def text(op: str, **other: Any) -> str:
        return json.dumps(
            [
                {"rank": 0, **dump([entry(4, op, size=8)], {"0": [0, 1]})},
                {"rank": 1, **dump([entry(4, op, **{"size": 8, **other})], {"0": [0, 1]})},
            ]
        )

    (finding,) = size_mismatch(Paste(text("all_reduce", size=12)))
    assert finding.subject == "rank 0 (8 elements) against rank 1 (12 elements), all_reduce 4 of default_pg"
    (finding,) = size_mismatch(Paste(text("all_reduce", input_dtypes=["Half"])))
    assert "Half" in finding.subject
    assert not list(size_mismatch(Paste(text("all_to_all", size=12))))
    assert not list(size_mismatch(Paste(text("all_reduce"))))


def test_the_place_at_which_ranks_went_apart_is_found() -> None:
    def frames(*names: str) -> list[dict[str, str]]:
        return [{"name": "all_reduce", "filename": "torch/distributed/c10d.py", "line": "1"}] + [
            {"name": name, "filename": "train.py", "line": "9"} for name in names
        ]

    text = json.dumps(
        [
            {
                "rank": 0,
                **dump(
                    [
                        entry(1, frames=frames("step")),
                        entry(2, frames=frames("save")),
                        entry(3, state="started", frames=frames("step")),
                    ],
                    {"0": [0, 1]},
                ),
            },
            {"rank": 1, **dump([entry(1, frames=frames("step")), entry(2, frames=frames("step"))], {"0": [0, 1]})},
        ]
    )
    (finding,) = order_mismatch(Paste(text))
    assert finding.subject == "ranks 0 and 1 at collective 2 of default_pg"
    assert "rank 0 in save, rank 1 in step" in finding.why


def test_a_receive_that_nobody_called_is_found() -> None:
    send = entry(0, "send 0->1", state="started", is_p2p=True, p2p_seq_id=7)
    text = json.dumps([{"rank": 0, **dump([send], {"0": [0, 1]})}, {"rank": 1, **dump([entry(1)], {"0": [0, 1]})}])
    findings = [finding for finding in rank_missing(Paste(text)) if "receive" in finding.subject]
    assert [finding.subject for finding in findings] == ["rank 1, receive from rank 0"]


def test_one_dump_does_not_show_which_rank_is_late() -> None:
    paste = Paste(json.dumps({"rank": 0, **LATE[0]}))
    assert not list(rank_missing(paste))
    (finding,) = dumps_missing(paste)
    assert (finding.severity, finding.subject) == ("info", "rank 1 of default_pg")
    assert not list(dumps_missing(Paste(forms()["lines"])))


ONE_DUMP = """\
{"rank": 0, "version": "2.4",
 "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
 "pg_status": {"0": {"last_enqueued_collective": "7", "last_completed_collective": "6"}},
 "entries": [
  {"record_id": 6, "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": 7, "p2p_seq_id": 0,
   "op_id": 7, "profiling_name": "nccl:all_reduce", "input_sizes": [[64]], "input_dtypes": ["Float"],
   "output_sizes": [[64]], "output_dtypes": ["Float"], "state": "started", "is_p2p": false, "retired": false}]}
"""


def test_a_written_dump_is_read() -> None:
    (finding,) = dumps_missing(Paste(ONE_DUMP))
    assert "Rank 0 waits in all_reduce 7" in finding.why


def test_a_collective_that_all_ranks_called_and_none_finished_has_no_missing_rank() -> None:
    dumps = [
        {"rank": rank, **dump([entry(5), entry(6, state="started", retired=True)], {"0": [0, 1]})} for rank in (0, 1)
    ]
    (finding,) = nccl_timeout(Paste(json.dumps(dumps)))
    assert finding.subject == "ranks 0 and 1, all_reduce 6 of default_pg"
    assert "no rank is missing" in finding.why


def test_a_running_job_blames_nobody() -> None:
    text = json.dumps([{"rank": rank, **dump([entry(5), entry(6, state="started")], {"0": [0, 1]})} for rank in (0, 1)])
    assert not [item for rule in (*HANG_RULES, *TIMEOUT_RULES) for item in rule(Paste(text))]


def test_a_pickle_is_not_opened() -> None:
    data = pickle.dumps({"version": "2.4", "entries": []}, protocol=2)
    for text in (data.decode("latin-1"), data.decode(errors="replace")):
        with pytest.raises(ParseError, match=r"json\.dumps"):
            ml.explain(text)
    for text in ("\ufffd\x04", "\x1b[0m\ufffd\x04 text"):  # what looks like one is no error of a format either
        with pytest.raises(ParseError):
            ml.explain(text)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 9) | st.sampled_from(["0", "nccl:send 0->1", "started", "[0, 1]", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from([*entry(1), "name", "ranks", "0", "frames", "last_enqueued_collective"]), inner
        )
    ),
    max_leaves=12,
)


@settings(max_examples=examples(60), deadline=None)
@given(st.fixed_dictionaries({"entries": VALUES, "pg_config": VALUES}, optional={"pg_status": VALUES, "rank": VALUES}))
def test_other_json_with_the_same_names_does_not_fail(value: dict[str, Any]) -> None:
    paste = Paste(json.dumps(value) + json.dumps(value, indent=1))
    if FLIGHT_RECORDER.find(paste):
        FLIGHT_RECORDER.see(paste).frames["calls"]()
    for rule in (rank_missing, order_mismatch, size_mismatch):
        assert isinstance(list(rule(paste)), list)


# -- simulated jobs ------------------------------------------------------------------------------------------------

GROUPS = {"0": (0, 1, 2, 3), "1": (0, 1), "2": (2, 3), "3": (0, 2), "4": (1, 3)}
OPS = ["all_reduce", "_allgather_base", "_reduce_scatter_base", "broadcast", "all_to_all"]


def simulate(schedule: Sequence[tuple[str, str]], late: int, stop: int, window: int) -> dict[int, list[dict[str, Any]]]:
    """Run a schedule of collectives in which one rank stops, and return what the recorders contain.

    Each rank waits for its collective before it calls the next one, so ranks that need a waiting rank wait as well.
    """
    calls_of = {rank: [call for call in schedule if rank in GROUPS[call[0]]] for rank in range(4)}
    position = dict.fromkeys(range(4), 0)
    seq: dict[tuple[int, str], int] = {}
    entries: dict[int, list[dict[str, Any]]] = {rank: [] for rank in range(4)}
    waiting: dict[int, str] = {}
    moved = True
    while moved:
        moved = False
        for rank in range(4):
            is_over = position[rank] >= len(calls_of[rank]) or (rank == late and position[rank] >= stop)
            if rank in waiting or is_over:
                continue
            group, op = calls_of[rank][position[rank]]
            seq[rank, group] = seq.get((rank, group), 0) + 1
            entries[rank].append(entry(seq[rank, group], op, group=group, state="started"))
            waiting[rank] = group
            moved = True
        for group, members in GROUPS.items():
            if all(waiting.get(rank) == group for rank in members):
                for rank in members:
                    entries[rank][-1] = {**entries[rank][-1], "state": "completed", "retired": True}
                    del waiting[rank]
                    position[rank] += 1
                moved = True
    return {rank: rank_entries[-window:] for rank, rank_entries in entries.items()}


@settings(max_examples=examples(60), deadline=None)
@given(
    schedule=st.lists(st.tuples(st.sampled_from(sorted(GROUPS)), st.sampled_from(OPS)), min_size=4, max_size=25),
    late=st.integers(0, 3),
    stop=st.integers(0, 12),
    window=st.integers(2, 30),
    order=st.permutations(range(4)),
)
def test_the_rank_that_stops_is_named_and_no_other(
    schedule: list[tuple[str, str]], late: int, stop: int, window: int, order: list[int]
) -> None:
    entries = simulate(schedule, late, stop, window)
    text = "\n".join(
        json.dumps({"rank": rank, **dump(entries[rank], {k: v for k, v in GROUPS.items() if rank in v})})
        for rank in order
    )
    paste = Paste(text)
    stuck = any(entry["state"] != "completed" for rank_entries in entries.values() for entry in rank_entries)
    named = {finding.subject.split(",")[0] for finding in rank_missing(paste)}
    assert named == ({f"rank {late}"} if stuck else set())
    assert not list(order_mismatch(paste))
    assert not list(size_mismatch(paste))


def test_the_number_of_elements_fits_into_64_bits() -> None:
    assert (n_elements(((2, 3), (4,))), n_elements(((LARGEST, LARGEST),))) == (10, LARGEST)


def test_the_text_of_a_printed_dump_keeps_its_quotes_and_escapes() -> None:
    frames = [{"name": "it's", "filename": 'C:\\a"b\x1b.py', "line": 7}]
    printed = str(dump([entry(5, frames=frames, duration_ms=None)], {"0": [0, 1]}))
    (read,) = read_flight_dumps(Paste(printed))
    assert read.calls[0].frames == (("it's", 'C:\\a"b\x1b.py', "7"),)


def test_a_printed_dump_that_ends_early_has_its_first_calls() -> None:
    printed = str(dump([entry(5), entry(6), entry(7)], {"0": [0, 1]}))
    (read,) = read_flight_dumps(Paste(printed[: printed.rindex("'record_id'")]))
    assert ([call.seq for call in read.calls], read.is_complete) == ([5, 6], False)


def test_dumps_that_do_not_list_the_members_of_a_group_miss_no_rank_for_certain() -> None:
    waiting = [{**dump([entry(5, state="started", retired=True)], {"0": [0, 1]}), "rank": rank} for rank in (0, 1)]
    (finding,) = nccl_timeout(Paste(json.dumps(waiting)))
    assert "no rank is missing" in finding.why
    for content in waiting:
        content["pg_config"] = {}
    (finding,) = nccl_timeout(Paste(json.dumps(waiting)))
    assert "no rank is missing" not in finding.why
