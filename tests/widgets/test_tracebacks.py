"""An error in IPython has the usual traceback, and the explanation of its logs below it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from meshlab.base._errors import EngineError
from meshlab.widgets._tracebacks import explained_traceback

WARNING = (
    "node1:91:130 [1] misc/shmutils.cc:87 NCCL WARN Error: failed to extend /dev/shm/nccl-Q7d to 33030532 bytes, "
    "error: No space left on device (28)"
)
EXPLANATION = "✕ /dev/shm is full or too small: node1 GPU 1, /dev/shm. "

# The same cells with and without the method that adds the explanation.
PAGE = "more: meshlab docs hangs"
SESSION = """
import contextlib, io, json, sys
from IPython.core.interactiveshell import InteractiveShell
from meshlab.base._errors import EngineError, MeshlabError

shell = InteractiveShell.instance(colors="nocolor")
shell.user_ns["EngineError"] = EngineError
setup, *cells = json.load(sys.stdin)
shell.run_cell(setup)

def outputs():
    texts = []
    for number, cell in enumerate(cells, 2):
        shell.execution_count = number
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
            shell.run_cell(cell)
        texts.append(out.getvalue())
    return texts

explained = outputs()
del MeshlabError._render_traceback_
print(json.dumps([explained, outputs()]))
"""


def outputs_of(*cells: str) -> tuple[list[str], list[str]]:
    """What IPython prints for cells after the first: with the explanation, and without."""
    done = subprocess.run(
        [sys.executable, "-c", SESSION], input=json.dumps(cells), check=True, capture_output=True, text=True
    )
    explained, usual = json.loads(done.stdout.splitlines()[-1])
    return explained, usual


def test_the_explanation_is_below_the_usual_traceback_in_every_mode() -> None:
    modes = ["Plain", "Context", "Verbose", "Minimal", "Docs"]
    setup = f"def fail():\n    raise EngineError('rank 1 failed', log={WARNING!r})"
    explained, usual = outputs_of(setup, *(cell for mode in modes for cell in (f"%xmode {mode}", "fail()")), "%tb")
    assert explained[::2][: len(modes)] == usual[::2][: len(modes)]  # of %xmode
    for number in [*range(1, 2 * len(modes), 2), -1]:
        rest = explained[number].removeprefix(usual[number].rstrip("\n"))
        assert rest != explained[number]
        assert rest.lstrip("\n").startswith(f"The log shows (error.explain() has the lines):\n  {EXPLANATION}")


def test_the_cause_of_an_error_is_still_shown() -> None:
    setup = f"def fail():\n    raise EngineError('tuning failed', log={WARNING!r}) from ValueError('the cause')"
    (explained,), (usual,) = outputs_of(setup, "fail()")
    assert "ValueError: the cause" in explained
    assert explained.startswith(usual.rstrip("\n"))
    assert EXPLANATION in explained


def test_an_error_without_an_explanation_only_names_its_page() -> None:
    explained, usual = outputs_of("pass", "raise EngineError('rank 1 failed', log='Traceback')", "raise ValueError(1)")
    assert explained == [f"{usual[0].rstrip()}\n{PAGE}\n", usual[1]]


def test_without_ipython_the_traceback_is_that_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    *lines, explanation, page = explained_traceback(EngineError("rank 1 failed", log=WARNING))
    assert page == PAGE
    assert "".join(lines).endswith(f"rank 1 failed\n{WARNING}\n")
    assert EXPLANATION in explanation
