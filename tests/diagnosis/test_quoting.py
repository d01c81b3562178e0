"""Safe quotation of pasted texts."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshlab.base._markup import markdown_text, visible
from meshlab.diagnosis._quoting import fenced, quote_line
from tests.diagnosis.texts_with_rules import HOSTILE

mistune = pytest.importorskip("mistune")


@given(st.text(st.characters(exclude_categories=())))
def test_a_quoted_text_has_no_character_that_a_terminal_obeys_or_that_hides(text: str) -> None:
    quoted = visible(text)
    assert not [sign for sign in quoted if unicodedata.category(sign) in ("Cc", "Cs") and sign not in "\n\t"]
    assert not re.search("[\u202a-\u202e\u2066-\u2069\u200b-\u200f\ufeff]", quoted)


def test_plain_text_is_quoted_as_it_is() -> None:
    text = "nodeA:12:34 [0] NCCL WARN Größe 4 µs → «ok» 日本"
    assert quote_line(text) == text


@given(st.text(max_size=3000), st.integers(20, 400))
def test_a_quoted_line_is_not_longer_than_its_limit(text: str, most: int) -> None:
    assert len(quote_line(text, most)) <= most


def test_the_end_of_a_long_line_is_kept() -> None:
    quoted = quote_line("start " + "x" * 10_000_000 + " end")
    assert quoted.startswith("start x")
    assert quoted.endswith("x end")


def tags(markdown: str) -> set[str]:
    """The elements of the HTML that Markdown becomes."""
    return set(
        re.findall(r"<(\w+)", mistune.create_markdown(escape=False, plugins=["table", "strikethrough"])(markdown))
    )


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_in_a_text_is_interpreted_as_markdown(text: str) -> None:
    assert tags(markdown_text(text)) <= {"p"}
    assert tags("\n".join(fenced(visible(text).split("\n")))) == {"pre", "code"}


@given(st.text(alphabet="<>&[]()*_`~#@!|\\-+=.:1a\n $\"'/", max_size=40))
def test_no_mixture_of_signs_is_interpreted_as_markdown(text: str) -> None:
    assert tags(markdown_text(text)) <= {"p"}
    assert tags("\n".join(fenced(text.split("\n")))) == {"pre", "code"}


def test_names_of_variables_and_paths_stay_readable_in_markdown() -> None:
    text = "Set NCCL_IB_GID_INDEX=3 and mount /dev/shm (64 MiB), see https://docs.nvidia.com/nccl"
    assert markdown_text(text) == text


def test_characters_that_a_terminal_obeys_get_names() -> None:
    assert (visible("a\x1b[31mb\0c"), visible("gpu\u202e0x")) == ("a␛[31mb␀c", r"gpu\u202e0x")


def test_a_long_line_loses_its_middle() -> None:
    assert quote_line("x" * 100, most=20) == "xxxxxxxxxxxx … xxxxx"


def test_markdown_shows_marks_and_names_as_they_are() -> None:
    escaped = r"&lt;b&gt;\*set\* NCCL_IB_HCA=^mlx5_0, ask @&#8203;someone"
    assert markdown_text("<b>*set* NCCL_IB_HCA=^mlx5_0, ask @someone") == escaped


def test_a_fence_is_longer_than_those_in_its_lines() -> None:
    assert fenced(["a ```` b"]) == ["`````text", "a ```` b", "`````"]
