"""Documents of JSON, TOML and YAML: every fault is a ParseError, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshlab.base._documents import (
    NestingError,
    decode_json,
    parse_json,
    parse_own_json,
    parse_toml,
    parse_yaml,
    read_own_json,
)
from meshlab.base._errors import ParseError
from tests.examples import examples

DEEP = 100_000

QUICK = settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.too_slow])

BROKEN_JSON = {
    "": "line 1: not valid JSON: the document is incomplete",
    "[1, 2": "the document is incomplete",
    '{"rank":\n tru}': "line 2: not valid JSON: expecting value",
    "{} {}": "unexpected text after the document",
    "[" * DEEP: "nested too deeply",
    '{"a":' * DEEP: "nested too deeply",
    "9" * 5000: "a number with thousands of digits",
}


@pytest.mark.parametrize("text", BROKEN_JSON, ids=lambda text: text[:10])
@pytest.mark.parametrize("parse", [parse_json, parse_own_json])
def test_broken_json_is_a_parse_error_with_its_line(parse, text: str) -> None:
    with pytest.raises(ParseError, match=BROKEN_JSON[text]) as caught:
        parse(text)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("text", [text for text in BROKEN_JSON if text != "{} {}"], ids=lambda text: text[:10])
def test_broken_json_within_a_text_is_a_parse_error(text: str) -> None:
    with pytest.raises(ParseError):
        decode_json(f"rank 0: {text}", 8)


@QUICK
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=10))
def test_json_is_read_as_python_reads_it(value) -> None:
    text = json.dumps(value)
    assert json.dumps(parse_json(text)) == text
    assert json.dumps(decode_json(f"x {text}", 2)[0]) == text


@QUICK
@given(st.text(st.sampled_from('"\\ud83aDE0u9fc[] ')))
def test_no_string_of_json_has_half_of_a_surrogate_pair(inner: str) -> None:
    text = f'["{inner}"]'
    try:
        expected = json.loads(text)
    except ValueError:
        with pytest.raises(ParseError):
            parse_json(text)
        return
    for value in (parse_json(text), decode_json(f"{text} x", 0)[0]):
        assert [part if isinstance(part, str) else "" for part in value] == [
            part.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if isinstance(part, str) else ""
            for part in expected
        ]
        str(value).encode()


@pytest.mark.parametrize(
    ("text", "why"),
    [('{"a": 1, "a": 2}', "the key 'a' occurs twice"), ("[NaN]", "NaN is not a number"), ("-Infinity", "Infinity")],
)
def test_own_json_has_neither_equal_keys_nor_constants_but_that_of_others_may(text: str, why: str) -> None:
    parse_json(text)
    with pytest.raises(ParseError, match=why):
        parse_own_json(text)


@pytest.mark.parametrize("data", [b"\xff\xfe{", b'{"where": "\xe9"}', b"\x1f\x8b\x08 broken"])
def test_a_file_of_other_bytes_is_a_parse_error_with_its_name(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "run.json").write_bytes(data)
    with pytest.raises(ParseError, match=r"run\.json"):
        read_own_json(tmp_path / "run.json")


@pytest.mark.parametrize(
    "text",
    ["a = [", "a = " + "[" * DEEP, "a = " + "9" * 5000, "\x00", "a = 1979-13-99", "a = 1\na = 2", "[a]\n[a]", "\ud800"],
    ids=lambda text: text[:10],
)
def test_broken_toml_is_a_parse_error(text: str) -> None:
    with pytest.raises(ParseError, match="TOML") as caught:
        parse_toml(text)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "text",
    [
        "a: [",
        "a: " + "[" * DEEP,
        "- " * 5000,
        "a: " + "9" * 5000,
        "\x00",
        "a: 1979-13-99",
        '!!int ""',
        '!!float ""',
        "!!bool x",
        "!!timestamp x",
        "!!python/object:os.system {}",
        "? [a]\n: 1",
        "*unknown",
        "=",
        "\ud800",
    ],
    ids=lambda text: text[:10],
)
def test_broken_yaml_is_a_parse_error(text: str) -> None:
    with pytest.raises(ParseError, match="YAML") as caught:
        parse_yaml(text)
    assert len(str(caught.value)) < 300


def test_nesting_that_is_too_deep_has_an_error_of_its_own() -> None:
    for parse, text in ((parse_json, "[" * DEEP), (parse_toml, "a = " + "[" * DEEP), (parse_yaml, "[" * DEEP)):
        with pytest.raises(NestingError):
            parse(text)
