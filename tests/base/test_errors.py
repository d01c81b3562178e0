from __future__ import annotations

import inspect
import pickle
import re
import subprocess
import sys
from typing import Any

import pytest

import meshlab
from meshlab import DeviceMesh, Plan, example, launch, preset
from meshlab.base import _errors as errors
from meshlab.base._errors import BenchError, CommunicatorError, EngineError, MeshlabError, ParseError, did_you_mean
from meshlab.base._units import parse_sizes
from meshlab.comm._catalog import CATALOG, find_collective
from meshlab.comm._elements import find_dtype, find_op
from meshlab.plots._curves import bandwidth


def test_the_docstring_lists_every_error() -> None:
    classes = [value for _, value in inspect.getmembers(errors, inspect.isclass) if issubclass(value, Exception)]
    assert len(classes) == 7
    for kind in classes:
        assert issubclass(kind, MeshlabError)
        assert kind.__name__ in (errors.__doc__ or "")
        assert getattr(meshlab.errors, kind.__name__) is kind
        assert kind.__module__ == "meshlab.errors"


def test_a_parse_error_shows_the_position() -> None:
    error = ParseError("no size", text="dp=x", column=3, file="mesh.txt", line=7)
    assert str(error) == "mesh.txt, line 7: no size\n  dp=x\n     ^"


def test_functions_for_the_ranks_catch_the_same_classes() -> None:
    """cloudpickle sends a class by value if its module is not imported, and then `except` has another class."""
    code = """
import cloudpickle, sys
from meshlab.base._errors import CommunicatorError
text = cloudpickle.dumps(CommunicatorError)
assert len(text) < 100, len(text)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


EXAMPLES = [
    BenchError("the folder 'out' holds a different run", hint="pass overwrite=True"),
    ParseError("bad", hint="write a number", text="dp=x", column=3),
    EngineError("rank 1 died", hint="call engines.restart()", rank=1, host="a", log="tail"),
    CommunicatorError("bad root", collective="broadcast", group="tp_0", rank=2, code=5),
]


@pytest.mark.parametrize("error", EXAMPLES)
def test_errors_survive_pickling(error: MeshlabError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (BenchError("no run"), "no run"),
        (BenchError("no run", hint="start one"), "no run; start one"),
        (
            ParseError("bad", hint="write a number", text="dp=x", column=3, line=2),
            "line 2: bad; write a number\n  dp=x\n     ^",
        ),
        (
            EngineError("rank 1 died", hint="restart", log="Segmentation fault\n"),
            "rank 1 died; restart\nSegmentation fault",
        ),
    ],
)
def test_the_hint_follows_the_message(error: MeshlabError, text: str) -> None:
    assert str(error) == text


@pytest.mark.parametrize("error", EXAMPLES)
def test_a_replaced_hint_changes_nothing_else(error: MeshlabError) -> None:
    error.__cause__ = KeyError("cause")
    before = str(error)
    replaced = error.with_hint("pass --force")
    assert str(error) == before
    assert vars(replaced) == vars(error) | {"hint": "pass --force"}
    assert type(replaced) is type(error)
    assert replaced.__cause__ is error.__cause__
    assert replaced.summary == f"{error.message}; pass --force"
    assert error.with_hint("").summary == error.message


@pytest.mark.parametrize(
    ("find", "name", "meant"),
    [
        *((find_collective, name, "all_reduce") for name in ("allreduce", "AllReduce", "ALL_REDUCE", "all-reduce")),
        (find_collective, "alltoall", "all_to_all"),
        (find_dtype, "float", "float32"),
        (find_dtype, "flaot16", "float16"),
        (find_dtype, "FP8", "float8_e4m3fn"),
        (find_op, "mean", "avg"),
        (find_op, "Sum", "sum"),
        (preset, "dgx-h10", "dgx-h100"),
        (preset, "DGX H100", "dgx-h100"),
        (preset, "gb200", "gb200-nvl72"),
        (lambda name: Plan("all_reduce", "tp", mode=name), "pipeline", "pipelined"),
        (lambda name: Plan("all_reduce", "tp", grouping=name), "Alone", "alone"),
        (lambda name: DeviceMesh("dp=2, tp=2")[name], "TP", "tp"),
        (lambda name: DeviceMesh("dp=2, tp=2")[name], "wrold", "world"),
        (lambda name: DeviceMesh("data=2, model=2").transpose("data", name), "modell", "model"),
        (lambda name: bandwidth(example(), y=name), "busbw", "busbw_gbs"),
        (lambda name: launch(2, backend=name), "thread", "threads"),
        (parse_sizes, "1K-16M", "1K:16M"),
        (parse_sizes, "8, 1 MiB – 2 MiB", "1 MiB:2 MiB"),
    ],
)
def test_an_unknown_name_is_answered_with_a_similar_one(find: Any, name: str, meant: str) -> None:
    with pytest.raises(MeshlabError, match=rf"\(did you mean {re.escape(repr(meant))}\?\); (choose|write first:last)"):
        find(name)


def test_no_name_is_suggested_if_none_is_similar() -> None:
    for name in ("fast", "xor", "", 3, None, "a"):
        assert did_you_mean(name, CATALOG) == ""


def test_a_suggestion_compares_neither_long_names_nor_very_many(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[str, int]] = []

    def count(name: str, names: Any, **options: Any) -> list[str]:
        compared.append((name, len(names)))
        return []

    monkeypatch.setattr(errors, "get_close_matches", count)
    assert did_you_mean("x" * 10_000_000, CATALOG) == ""
    assert compared == []
    assert did_you_mean("node", (f"host{number}" for number in range(1_000_000))) == ""
    assert compared == [("node", 5000)]


def test_short_names_of_dtypes_are_accepted() -> None:
    dtypes = ["half", "fp16", "bf16", "single", "fp32", "double", "fp64"]
    assert Plan("all_reduce", "tp", dtype=dtypes).dtype == ("float16", "bfloat16", "float32", "float64")
    assert find_dtype("bf16") == find_dtype("bfloat16")


def test_half_of_a_surrogate_pair_becomes_a_character_that_can_be_written() -> None:
    assert errors.printable("n\ud800de") == "n\N{REPLACEMENT CHARACTER}de"
    assert errors.printable("\ud83d\ude00 größer") == "\N{GRINNING FACE} größer"


def test_apostrophes_do_not_enclose_a_value() -> None:
    message = "the worker's log is empty, " + "so pass another file, " * 12 + "or the framework's config"
    assert errors.MeshlabError(message).message == message
    assert "…'" in errors.MeshlabError(f"unknown axis {'t p ' * 80!r}").message
    assert "…'" in errors.MeshlabError(f"unknown text {b't p ' * 80!r}").message
