from __future__ import annotations

import pickle

import pytest

from meshlab import errors
from meshlab.errors import BenchError, CommunicatorError, EngineError, MeshlabError, ParseError


def test_the_docstring_lists_every_error() -> None:
    for name in errors.__all__:
        assert issubclass(getattr(errors, name), MeshlabError)
        assert name in (errors.__doc__ or "")


def test_a_parse_error_shows_the_position() -> None:
    error = ParseError("no size", text="dp=x", column=3, file="mesh.txt", line=7)
    assert str(error) == "mesh.txt, line 7: no size\n  dp=x\n     ^"


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
