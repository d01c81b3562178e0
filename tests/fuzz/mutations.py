"""Mutations of good inputs: what copying and consoles do to a text, and what someone might do on purpose."""

from __future__ import annotations

import copy
import gzip
import json
import math
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

__all__ = ["CELLS", "NUMBERS", "VALUES", "WORDS", "mutate_bytes", "mutate_frame", "mutate_json", "mutate_text"]

NUMBERS = (
    *("0", "-1", "-0", "+1", "00", "1.5", "1e3", "1e999", "-1e999", "1e-999", "nan", "NaN", "inf", "-inf", "Infinity"),
    *("²", "٣", "９", "Ⅷ", "½", "1_000", "1,000", "0x10", "0x", "1/0", "1.", ".5", "--1", "1-", "1e", "e1", "∞", "−1"),
    *("127", "128", "255", "256", "65535", "65536", "2147483647", "2147483648", "4294967295", "4294967296"),
    *("9223372036854775807", "9223372036854775808", "18446744073709551615", "18446744073709551616", "1" * 25),
    *("1.7976931348623157e308", "1.7976931348623159e308", "4.9e-324", "9" * 400, "9" * 5000, "0" * 5000 + "1"),
)
"""Numbers that are no numbers, or do not fit where a number is expected."""

WORDS = (
    *(
        "",
        " ",
        "\0",
        "\r",
        "\n",
        "\r\n",
        "\t",
        "\x0b",
        "\x1c",
        "\x85",
        "\u2028",
        "\ufeff",
        "\ufffd",
        "\x1b[31m",
        "\x7f",
    ),
    *("\ud800", "\udfff", "é", "日本", "🙂", "a\u0301", "\u202e", "ſ", "İ", "ß"),
    *(
        "null",
        "None",
        "true",
        "{}",
        "[]",
        "[" * 300,
        "{" * 300,
        "(" * 300,
        "[1-",
        "[1-2]",
        "n[1-999999999]",
        "]",
        ")",
        '"',
    ),
    *(
        "'",
        "\\",
        "\\u0000",
        "\\ud800",
        "%s",
        "{0}",
        "{x}",
        "$(id)",
        "${X:-2}",
        "../..",
        "/",
        "~",
        "*",
        "&a",
        "*a",
        "<<: *a",
    ),
    *(
        "!!int",
        "!!python/object:os.system",
        "<!DOCTYPE x>",
        "<!--",
        "-->",
        "<![CDATA[",
        "&amp;",
        "&#0;",
        "=",
        ":",
        ",",
        ";",
    ),
    *(
        "__class__",
        "constructor",
        "world",
        "rank",
        "x" * 300,
        "a" * 5000,
        "[1,1]<stdout>:",
        "1: ",
        "-",
        "--",
        "#",
        "[rank3]:",
    ),
)
"""Pieces of text that are special somewhere."""

CELLS: tuple[Any, ...] = (
    *(None, True, 0, 1, -1, -5.0, 1e308, 5e-324, 2**31, 2**53 + 1, 2**63 - 1, math.nan, math.inf, -math.inf),
    *("", " ", "x", "\0", "\r\n", "=1+1", "tp", "ok", "wrong", "failed", "all_reduce", "9" * 400, "日本", "[0, 1]"),
)
"""Cells of a frame."""

VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2,
        2.5,
        -0.5,
        2**31,
        2**53 + 1,
        2**63 - 1,
        2**63,
        -(2**63) - 1,
        2**64,
        10**30,
        10**400,
    ),
    *(1e308, -1e308, 5e-324, float("nan"), float("inf"), float("-inf")),
    *(
        "",
        " ",
        "x",
        "0",
        "-1",
        "nan",
        "²",
        "٣",
        "9" * 400,
        "\0",
        "\ud800",
        "tp",
        "world",
        "a" * 3000,
        "2024-13-45T99:99",
    ),
    *(
        [],
        [[]],
        [None],
        [1],
        ["x"],
        [1, "x", None],
        {},
        {"": None},
        {"x": 1},
        {"x": []},
        [{}],
        [[1, 2], [3]],
        {"0": {"0": {}}},
    ),
)
"""Values of JSON that are wrong in most places."""

_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_WORD = re.compile(r"[A-Za-z_][\w.-]*")

TextMutation = Callable[[random.Random, str, Callable[[], str]], str]


def _span(rng: random.Random, text: str, most: int = 200) -> tuple[int, int]:
    start = rng.randrange(len(text) + 1)
    return start, min(len(text), start + rng.randrange(1, most))


def _cut_end(rng: random.Random, text: str, other: Callable[[], str]) -> str:
    return text[: rng.randrange(len(text) + 1)]


def _cut_start(rng: random.Random, text: str, other: Callable[[], str]) -> str:
    return text[rng.randrange(len(text) + 1) :]


def _cut_part(rng: random.Random, text: str, other: Callable[[], str]) -> str:
    start, end = _span(rng, text)
    return text[:start] + text[end:]


def _insert_word(rng: random.Random, text: str, other: Callable[[], str]) -> str:
    at = rng.randrange(len(text) + 1)
    return text[:at] + rng.choice(WORDS) + text[at:]


def _insert_number(rng: random.Random, text: str, other: Callable[[], str]) -> str:
    at = rng.randrange(len(text) + 1)
    return text[:at] + rng.choice(NUMBERS) + text[at:]


def _replaced(rng: random.Random, text: str, pattern: re.Pattern[str], choices: Sequence[str]) -> str:
    found = [match.span() for match in pattern.finditer(text[:20_000])]
    if not found:
        return text
    word = rng.choice(choices)
    if rng.random() < 0.1:  # everywhere
        return pattern.sub(lambda _: word, text[:20_000])
    start, end = rng.choice(found)
    return text[:start] + word + text[end:]


def _replace_number(rng: random.Random, text: str, other: Callable[[], str]) -> str:
    return _replaced(rng, text, _NUMBER, NUMBERS)


def _replace_word(rng: random.Random, text: str, other: Callable[[], str]) -> str:
    return _replaced(rng, text, _WORD, WORDS)


def _character(rng: random.Random, text: str, other: Callable[[], str]) -> str:
    if not text:
        return text
    at = rng.randrange(len(text))
    return (
        text[:at]
        + chr(rng.choice((rng.randrange(128), rng.randrange(0x3000), 0x2000 + rng.randrange(64))))
        + text[at + 1 :]
    )


def _lines(change: Callable[[random.Random, list[str]], None]) -> TextMutation:
    def mutation(rng: random.Random, text: str, other: Callable[[], str]) -> str:
        lines = text.splitlines(keepends=True)
        if lines:
            change(rng, lines)
        return "".join(lines)

    return mutation


def _repeat_line(rng: random.Random, lines: list[str]) -> None:
    at = rng.randrange(len(lines))
    lines[at:at] = [lines[at]] * rng.choice((1, 1, 3, 40))


def _delete_line(rng: random.Random, lines: list[str]) -> None:
    del lines[rng.randrange(len(lines))]


def _move_line(rng: random.Random, lines: list[str]) -> None:
    line = lines.pop(rng.randrange(len(lines)))
    lines.insert(rng.randrange(len(lines) + 1), line)


def _join_lines(rng: random.Random, lines: list[str]) -> None:
    at = rng.randrange(len(lines))
    lines[at] = lines[at].rstrip("\r\n")


def _splice(rng: random.Random, text: str, other: Callable[[], str]) -> str:
    second = other()
    return text[: rng.randrange(len(text) + 1)] + second[rng.randrange(len(second) + 1) :]


def _append(rng: random.Random, text: str, other: Callable[[], str]) -> str:
    return f"{text}{rng.choice(('', chr(10)))}{other()}"


def _line_ends(rng: random.Random, text: str, other: Callable[[], str]) -> str:
    return text.replace("\n", rng.choice(("\r", "\r\n", "\u2028", "\x0b", "\x85", " ", "", "\n\n", "\0")))


def _spaces(rng: random.Random, text: str, other: Callable[[], str]) -> str:
    return text.replace(" ", rng.choice(("\t", "\u00a0", "\u3000", "  ", "")))


def _case(rng: random.Random, text: str, other: Callable[[], str]) -> str:
    return rng.choice((str.upper, str.lower, str.swapcase, str.title))(text)


def _wrap(rng: random.Random, text: str, other: Callable[[], str]) -> str:
    before, after = rng.choice(
        (("```\n", "\n```"), ("> ", ""), ('"', '"'), ("(", ")"), ("[", "]"), ("{", "}"), ("\ufeff", ""))
    )
    return f"{before}{text}{after}"


def _deep(rng: random.Random, text: str, other: Callable[[], str]) -> str:
    at = rng.randrange(len(text) + 1)
    return text[:at] + rng.choice("[{(<-") * rng.choice((50, 1_500, 100_000)) + text[at:]


def _as_json(rng: random.Random, text: str, other: Callable[[], str]) -> str:
    return mutate_json(rng, text)


_COMMON: tuple[TextMutation, ...] = (
    _cut_end,
    _cut_start,
    _cut_part,
    _insert_word,
    _insert_number,
    _replace_number,
    _replace_number,
    _replace_number,
    _replace_word,
    _character,
    _character,
    _lines(_repeat_line),
    _lines(_delete_line),
    _lines(_move_line),
    _lines(_join_lines),
    _splice,
    _append,
    _as_json,
    _as_json,
)
_RARE: tuple[TextMutation, ...] = (_line_ends, _spaces, _case, _wrap, _deep)


def mutate_text(rng: random.Random, text: str, other: Callable[[], str]) -> str:
    """Return a text after one to four mutations. `other` returns another good text to splice with."""
    for _ in range(rng.choice((1, 1, 2, 3, 4))):
        text = rng.choice(_RARE if rng.random() < 0.1 else _COMMON)(rng, text, other)
    return text


def mutate_bytes(rng: random.Random, data: bytes) -> bytes:
    """Return bytes after a mutation that a text cannot have."""
    kind = rng.randrange(8)
    if kind == 0:
        return gzip.compress(data)
    if kind == 1:
        return gzip.compress(data)[: rng.randrange(8, 60)]
    if kind == 2:
        return rng.choice((b"\xff\xfe", b"\xfe\xff", b"\xef\xbb\xbf", b"\x80\x04", b"\x1f\x8b", b"PAR1")) + data
    if kind == 3:
        return data.decode(errors="replace").encode(
            rng.choice(("utf-16", "utf-16-le", "utf-32", "cp500")), errors="replace"
        )
    changed = bytearray(data)
    for _ in range(rng.choice((1, 3, 20))):
        at = rng.randrange(len(changed) + 1)
        if kind in (4, 5) and at < len(changed):
            changed[at] = rng.randrange(256)
        elif kind == 6:
            changed[at:at] = rng.choice((b"\xff", b"\x00", b"\xc3", b"\xed\xa0\x80", b"\xf5\x80\x80\x80"))
        else:
            del changed[at : at + rng.randrange(1, 30)]
    return bytes(changed)


def mutate_json(rng: random.Random, text: str) -> str:
    """Return a JSON document with some values of a wrong type, removed or moved. Other texts stay the same."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return text
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        document = _changed(rng, document)
    try:
        return json.dumps(document, ensure_ascii=rng.random() < 0.5)
    except ValueError:  # a part was put into itself
        return text


def mutate_frame(rng: random.Random, frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame with some cells, columns or rows changed, doubled or missing."""
    for _ in range(rng.choice((1, 1, 2, 5))):
        frame = frame.astype(object)
        if frame.empty:
            break
        kind, column = rng.randrange(8), rng.choice(list(frame.columns))
        if kind < 3:
            frame.iloc[rng.randrange(len(frame)), frame.columns.get_loc(column)] = rng.choice(CELLS)
        elif kind == 3:
            frame[column] = [rng.choice(CELLS)] * len(frame)
        elif kind == 4:
            frame = frame.drop(columns=column)
        elif kind == 5:
            frame = frame.rename(columns={column: rng.choice(("x", "", f" {column}", column.upper()))})
        elif kind == 6:
            frame = frame.iloc[[rng.randrange(len(frame)) for _ in range(rng.choice((0, 1, len(frame), 40)))]]
        else:
            frame[column] = frame[rng.choice(list(frame.columns))].to_numpy()
    return frame.reset_index(drop=True).convert_dtypes()


def _value(rng: random.Random) -> Any:
    """Return a value for a node. It is a copy, because later changes may put a part of a document into it."""
    return copy.deepcopy(rng.choice(VALUES))


def _changed(rng: random.Random, document: Any) -> Any:
    """Replace one node. Nodes near the root are as likely as all those below them, because there are few of them."""
    if not isinstance(document, (dict, list)) or not document or rng.random() < 0.03:
        return _value(rng)
    parent, node = None, document
    key: Any = None
    while isinstance(node, (dict, list)) and node and (parent is None or rng.random() < 0.75):
        parent = node
        key = rng.choice(list(node)) if isinstance(node, dict) else rng.randrange(len(node))
        node = node[key]
    assert parent is not None
    kind = rng.random()
    if kind < 0.6:
        parent[key] = _value(rng)
    elif kind < 0.75:
        del parent[key]
    elif kind < 0.85 and isinstance(parent, list):
        parent[key:key] = [node] * rng.choice((1, 3, 100))
    elif kind < 0.85:
        parent[rng.choice(("x", "", "0", str(key).upper(), f"{key} "))] = node
    elif kind < 0.92:
        parent[key] = rng.choice(([node], {"x": node}, str(node), json.dumps(node)))
    elif isinstance(node, (int, float)):
        parent[key] = rng.choice((-node, node * 1000, f"{node:.6g}" if isinstance(node, float) else str(node)[:300]))
    else:
        parent[key] = document if len(str(document)) < 5_000 and isinstance(document, str) else None
    return document
