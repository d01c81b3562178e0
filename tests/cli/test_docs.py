"""`meshlab docs` finds the pages of the documentation, and every page that an error names exists."""

from __future__ import annotations

import pytest

from meshlab import errors
from meshlab.cli._docs import matches, titles
from meshlab.cli._main import main


def test_without_a_word_all_pages_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(titles()) > 10
    assert "  hangs           When something hangs" in lines


@pytest.mark.parametrize(
    ("word", "page"),
    [("hangs", "hangs"), ("hang", "hangs"), ("Traces", "traces"), ("bus bandwidth", "measuring"), ("slurm", "cluster")],
)
def test_a_word_finds_its_page(capsys: pytest.CaptureFixture[str], word: str, page: str) -> None:
    assert page in matches(word)
    if matches(word) == [page]:
        assert main(["docs", *word.split()]) == 0
        assert capsys.readouterr().out.startswith(f"# {titles()[page]}")


def test_an_unknown_word_lists_the_pages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs", "hangz"]) == 2
    out, err = capsys.readouterr()
    assert err == "meshlab: there is no page about 'hangz' (did you mean 'hangs'?); these are the pages:\n"
    assert len(out.splitlines()) == len(titles())


@pytest.mark.parametrize("name", [name for name in dir(errors) if name.endswith("Error")])
def test_an_error_names_a_page_that_exists_or_none(name: str) -> None:
    page = getattr(errors, name).page
    assert not page or page in titles()
