from __future__ import annotations

import pickle

import pytest

from meshlab import errors
from meshlab.errors import CommunicatorError, EngineError, MeshlabError, ParseError


def test_every_error_is_in_the_drawn_tree() -> None:
    for name in errors.__all__:
        assert issubclass(getattr(errors, name), MeshlabError)
        assert name in (errors.__doc__ or "")


def test_a_parse_error_shows_the_place() -> None:
    error = ParseError("no size", text="dp=x", column=3, file="mesh.txt", line=7)
    assert str(error) == "mesh.txt, line 7: no size\n  dp=x\n     ^"


@pytest.mark.parametrize(
    "error",
    [
        ParseError("bad", text="dp=x", column=3),
        EngineError("rank 1 died", rank=1, host="a", log="tail"),
        CommunicatorError("bad root", collective="broadcast", group="tp_0", rank=2, code=5),
    ],
)
def test_errors_survive_pickling(error: MeshlabError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert vars(again) == vars(error)
