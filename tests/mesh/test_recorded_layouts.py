"""Layouts whose groups the frameworks' own code created, recorded by `record_layouts.py`."""

from __future__ import annotations

import hashlib
import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from meshlab.base._errors import MeshError
from meshlab.mesh._mesh import DeviceMesh

RECORDED = {path.stem: json.loads(path.read_text()) for path in Path(__file__).parent.glob("recorded_layouts/*.json")}

AMBIGUOUS: tuple[str, ...] = ("DeviceMesh((flat=12), 'cpu', stride=((12, 1),))",)
"""Reprs of a flattened axis, which omit the sizes inside it, if several fit into the world."""


def digest(groups: list[list[int]]) -> str:
    return hashlib.sha256(json.dumps(sorted(groups)).encode()).hexdigest()[:12]


def read(layout: dict[str, Any]) -> DeviceMesh:
    with warnings.catch_warnings():
        # A slice of one rank, and dense layers beside experts, are named in warnings that other tests check.
        warnings.simplefilter("ignore")
        return DeviceMesh.read(layout["text"], world_size=layout["world_size"], experts=layout["experts"])


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_groups_are_those_that_the_framework_creates(name: str) -> None:
    for layout in RECORDED[name]["layouts"]:
        if layout["text"] in AMBIGUOUS:
            with pytest.raises(MeshError, match="2 layouts match; pass world_size=, or paste the mesh before"):
                read(layout)
            continue
        mesh = read(layout)
        groups = {axes: digest(mesh[axes].array.tolist()) for axes in layout["groups"]}
        assert groups == layout["groups"], f"{layout['text']} with {layout['world_size']} ranks is read as {mesh}"


def test_every_framework_has_at_least_two_hundred_layouts() -> None:
    expected = {"megatron", "hypercomm", "torchtitan", "torchtitan-0.2.2", "deepspeed", "torch", "jax", "nanotron"}
    assert set(RECORDED) == expected
    assert min(len(recorded["layouts"]) for recorded in RECORDED.values()) >= 200
