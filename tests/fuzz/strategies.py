"""Inputs with the structure of good ones, and values that may be anything."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from meshlab.mesh.interop._frameworks import READERS
from tests.fuzz.mutations import NUMBERS, VALUES, WORDS
from tests.fuzz.seeds import CONFIGS, HARDWARE, JSONS, LOGS, MESHES, SLURM

__all__ = ["anything", "config_texts", "host_lists", "json_texts", "mesh_texts", "numbers", "size_texts", "words"]

AXES = ("pp", "dp", "cp", "tp", "ep", "dp_shard", "dp_replicate", "world", "rank", "tp_0", "x", "", "1", "dp-tp", "ſ")
COLLECTIVES = (
    "all_reduce",
    "AllReduce",
    "all_gather",
    "broadcast",
    "send",
    "send_recv",
    "all_to_all_v",
    "barrier",
    "x",
    "",
)
UNITS = ("", "K", "M", "G", "T", "B", "KiB", "MB", "k", " K", "Ki", "P", "%")

small = st.integers(-2, 20).map(str)
number_texts = st.one_of(small, small, st.sampled_from(NUMBERS), st.integers().map(str), st.floats().map(str))
words = st.one_of(
    st.sampled_from(WORDS), st.sampled_from(AXES), st.sampled_from(COLLECTIVES), st.text(max_size=12), number_texts
)
anything = st.one_of(
    st.sampled_from(VALUES), st.integers(), st.integers(-3, 40), st.floats(), st.text(max_size=8), words, st.booleans()
)
numbers: st.SearchStrategy[Any] = st.one_of(
    st.integers(-2, 40),
    st.integers(),
    st.floats(),
    st.sampled_from([2**31, 2**63 - 1, 2**63, 2**64, 10**30, 10**400, -(10**400), 1e308, 5e-324, float("nan")]),
)


def joined(part: st.SearchStrategy[str], separators: tuple[str, ...], most: int = 5) -> st.SearchStrategy[str]:
    """Return lists of parts, with any separators between them."""
    pair = st.tuples(part, st.sampled_from(separators))
    return st.lists(pair, min_size=1, max_size=most).map(lambda pairs: "".join(a + b for a, b in pairs))


axes = st.tuples(st.one_of(st.sampled_from(AXES), words), st.sampled_from(("=", " = ", "==", ":")), number_texts).map(
    "".join
)
usual_axes = st.lists(
    st.tuples(st.sampled_from(("pp", "dp", "cp", "tp", "ep", "x")), st.integers(1, 5)),
    min_size=1,
    max_size=5,
    unique_by=lambda a: a[0],
).map(lambda pairs: ", ".join(f"{name}={size}" for name, size in pairs))


def _filled(template: str) -> st.SearchStrategy[str]:
    """Return a seed with any words for its numbers and names."""
    pieces = template.replace("=", "\n=\n").replace(" ", "\n \n").replace('"', '\n"\n').split("\n")
    return st.tuples(*(st.one_of(st.just(piece), st.just(piece), st.just(piece), words) for piece in pieces)).map(
        "".join
    )


mesh_texts = st.one_of(
    usual_axes,
    joined(axes, (", ", " ", ",", "\n", "")),
    *(_filled(text) for text in MESHES),
    st.tuples(st.sampled_from(READERS), words).map(" ".join),
)
config_texts = st.one_of(*(_filled(text) for text in CONFIGS))
hardware_texts = st.one_of(*(_filled(text) for text in (*HARDWARE, *SLURM)))
log_texts = st.one_of(*(_filled(text) for text in LOGS))

one_size = st.tuples(number_texts, st.sampled_from(UNITS)).map("".join)
size_texts = st.one_of(
    one_size,
    joined(one_size, (":", ",", "*", "+", "-", " to ", " ")),
    st.sampled_from(["1:1P", "8:1G*1", "8:1G*1e300", "8:1G*nan", "1:4M+1", "1K" + " " * 2000 + "x", "1" * 400 + "K"]),
)

host_parts = st.one_of(
    st.from_regex(r"[a-z]{1,4}\[[0-9]{1,3}-[0-9]{1,3}\]", fullmatch=True),
    st.from_regex(r"[a-z]{0,2}\[[0-9,-]{0,9}\][a-z]{0,2}", fullmatch=True),
    st.tuples(
        st.sampled_from(("n[", "[", "r[0-3]n[")),
        number_texts,
        st.sampled_from(("-", "--", ",")),
        number_texts,
        st.sampled_from(("]", "", "]]")),
    ).map("".join),
    words,
)
host_lists = joined(host_parts, (",", ", ", " ", "", "\n"))

json_values = st.recursive(
    anything,
    lambda of: st.one_of(st.lists(of, max_size=4), st.dictionaries(st.text(max_size=6), of, max_size=4)),
    max_leaves=12,
)


@st.composite
def json_texts(draw: st.DrawFn) -> str:
    """Return a good document with some of its values replaced by any others."""
    document = json.loads(draw(st.sampled_from([*JSONS, *(text for text in CONFIGS if text.startswith("{"))])))
    for _ in range(draw(st.integers(1, 4))):
        node = document
        while True:
            keys: list[Any] = list(node) if isinstance(node, dict) else list(range(len(node)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            inner = node[key]
            if not isinstance(inner, (dict, list)) or draw(st.integers(0, 3)) == 0:
                node[key] = draw(json_values)
                break
            node = inner
    return json.dumps(document)


all_texts = st.one_of(
    mesh_texts, config_texts, hardware_texts, log_texts, json_texts(), size_texts, host_lists, st.text(max_size=60)
)
