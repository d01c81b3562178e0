from __future__ import annotations

import math
import re
import time
from types import SimpleNamespace
from typing import Any

import IPython
import pandas as pd
import pytest
from IPython.core.formatters import DisplayFormatter

import meshlab as ml
from meshlab.frames._display import register
from meshlab.frames._schema import RESULTS, empty_results

INTERVAL = "95\N{NO-BREAK SPACE}%\N{NO-BREAK SPACE}interval"
SHOWN = ["axis", "group", "collective", "size", "time_us", INTERVAL, "busbw_gbs", "n_wrong", "status"]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that returns what a notebook shows of a value, by MIME type."""
    formatter = DisplayFormatter()
    monkeypatch.setattr(IPython, "get_ipython", lambda: SimpleNamespace(display_formatter=formatter))
    formatter.active_types = ["text/plain", "text/html"]
    register()
    return lambda value: formatter.format(value)[0]


def header(text: str) -> list[str]:
    return re.split(" +", text.splitlines()[0].strip())  # not at spaces that do not break lines


def test_results_are_shown_by_what_matters(shown: Any) -> None:
    results = ml.example().query("mode == 'graph' and collective == 'all_reduce'").head(4)
    assert type(results) is pd.DataFrame
    with pd.option_context("display.max_columns", 20, "display.width", 200):
        page = shown(results)
    assert header(page["text/plain"]) == SHOWN
    assert all(f"<th>{name}</th>" in page["text/html"] for name in SHOWN)
    note = f"4 rows with {len(RESULTS)} columns, of which {len(SHOWN)} are shown: select others by name"
    assert note in page["text/plain"]
    assert note in page["text/html"]


def test_columns_that_tell_rows_apart_are_shown_too(shown: Any) -> None:
    results = ml.example().groupby("mode", sort=False).head(1)
    with pd.option_context("display.max_columns", 20, "display.width", 250):
        assert "mode" in header(shown(results)["text/plain"])
        pair = results.head(1).assign(grouping="pairs", launch=0)
        assert "launch" in header(shown(pd.concat([pair, pair.assign(launch=1)]))["text/plain"])


def test_digits_follow_the_interval_and_what_is_missing_is_a_dash(shown: Any) -> None:
    low, high = [10.0, 33.8, math.nan], [435.0, 34.0, math.nan]
    results = ml.example().head(3).assign(time_us=33.9, time_us_lo=low, time_us_hi=high)
    results = results.astype({column.name: column.dtype for column in RESULTS}).reset_index(drop=True)
    results.loc[2, ["status", "time_us", "busbw_gbs"]] = ["failed", math.nan, math.nan]
    results.loc[2, "size_bytes"] = pd.NA
    with pd.option_context("display.max_columns", 20, "display.width", 200):
        lines = shown(results)["text/plain"].splitlines()
    assert lines[1].split()[6:10] == ["30", "10", "–", "440"]
    assert lines[2].split()[6:10] == ["33.9", "33.8", "–", "34.0"]
    assert lines[3].split()[-6:] == ["–", "–", "–", "–", "0", "failed"]


@pytest.mark.parametrize(
    "change",
    [
        lambda results: results[["time_us", "p95_us"]],
        lambda results: results.assign(share=0.5),
        lambda results: results.T,
        lambda results: results.drop(columns="status"),
        lambda results: results.groupby("collective")["time_us"].describe(),
        lambda results: pd.DataFrame({"x": range(3)}),
        lambda results: results.assign(time_us="slow").astype(object),
    ],
)
def test_all_other_frames_are_shown_by_pandas(shown: Any, change: Any) -> None:
    frame = change(ml.example().head(3))
    assert shown(frame) == {"text/plain": repr(frame), "text/html": frame._repr_html_()}


def test_options_of_pandas_are_followed(shown: Any) -> None:
    results = ml.example().head(3)
    with pd.option_context("display.max_columns", None):
        assert shown(results) == {"text/plain": repr(results), "text/html": results._repr_html_()}
    with pd.option_context("display.max_columns", 20, "display.notebook_repr_html", False):
        assert set(shown(results)) == {"text/plain"}
    with pd.option_context("display.max_columns", 20, "display.max_rows", 10):
        page = shown(ml.example())["text/html"]
    assert page.count("<tr") < 15
    assert page.count(" rows") == 1


def test_a_large_frame_is_shown_at_once(shown: Any) -> None:
    results = pd.concat([ml.example()] * 300, ignore_index=True)
    with pd.option_context("display.max_columns", 20, "display.width", 200):
        began = time.process_time()
        lines = shown(results)["text/plain"].splitlines()
    assert time.process_time() - began < 2
    assert lines[1].split()[0] == "0"
    assert lines[-3].split()[0] == str(len(results) - 1)
    assert all("–" in line for line in (lines[1], lines[-3]))


def test_empty_results_are_shown(shown: Any) -> None:
    with pd.option_context("display.max_columns", 20):
        assert "0 rows with" in shown(empty_results())["text/plain"]


def test_formatters_of_other_libraries_still_show_their_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    formatter = DisplayFormatter()
    monkeypatch.setattr(IPython, "get_ipython", lambda: SimpleNamespace(display_formatter=formatter))
    formatter.active_types = ["text/plain", "text/html"]
    formatter.formatters["text/html"].for_type(pd.DataFrame, lambda frame: "<b>grid</b>")
    register()
    assert formatter.format(pd.DataFrame({"x": [1]}))[0]["text/html"] == "<b>grid</b>"
    with pd.option_context("display.max_columns", 20):
        assert INTERVAL in formatter.format(ml.example().head(2))[0]["text/html"]


@pytest.mark.full
def test_a_notebook_shows_results_by_what_matters() -> None:
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel()
    pages: list[dict[str, str]] = []

    def hear(message: dict[str, Any]) -> None:
        if message["msg_type"] == "execute_result":
            pages.append(message["content"]["data"])

    code = """
import meshlab as ml
with ml.launch(2, backend="threads") as engines:
    run = ml.bench(engines, "tp=2", "all_reduce", sizes="1K, 4K", sampling="quick")
    results = run.wait(progress=False)
results
"""
    try:
        for text in (code, "results[['time_us']]", "run.results.equals(results), type(results).__name__"):
            client.execute_interactive(text, timeout=120, output_hook=hear)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert all(f"<th>{name}</th>" in pages[0]["text/html"] for name in SHOWN)
    assert "<th>run_id</th>" not in pages[0]["text/html"]
    assert "<th>time_us</th>" in pages[1]["text/html"]
    assert "are shown" not in pages[1]["text/html"]
    assert pages[2]["text/plain"] == "(True, 'DataFrame')"
