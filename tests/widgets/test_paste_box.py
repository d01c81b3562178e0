"""The field for a text, as far as it is Python."""

from __future__ import annotations

from pathlib import Path

import meshlab as ml
from meshlab.widgets._paste_box import PasteBox

LAYOUT = "DeviceMesh((dp=2, tp=4), device: 'cuda', stride: (4, 1))"


def test_a_text_is_explained_and_an_empty_one_removes_the_explanation() -> None:
    box = PasteBox()
    assert (box.explanation, box.problem) == (None, "")
    box.text = LAYOUT
    assert box.explanation is not None
    assert box.explanation.mesh == ml.DeviceMesh("dp=2, tp=4")
    assert box._shown["html"] == box.explanation._repr_html_()
    assert box._shown["markdown"] == box.explanation.to_markdown()
    box.text = " "
    assert (box.explanation, box._shown["html"]) == (None, "")


def test_a_text_that_nobody_knows_keeps_no_older_explanation() -> None:
    box = PasteBox(LAYOUT)
    box.text = "<b>hello</b>"
    assert box.explanation is None
    assert box.problem.startswith("nothing was recognised")
    assert "<b>" not in box._repr_mimebundle_()[0]["text/html"]


def test_every_text_changes_what_the_front_end_waits_for() -> None:
    box = PasteBox("hello")
    seen = []
    box.observe(lambda change: seen.append(change["new"]), names="_shown")
    box.text = "hello\n"
    assert len(seen) == 1


def test_the_name_of_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "layout.txt"
    path.write_text(LAYOUT)
    assert PasteBox(str(path)).explanation is not None
    assert "this is a folder" in PasteBox(str(tmp_path)).problem


def test_a_saved_notebook_shows_the_explanation_without_the_widget() -> None:
    box = PasteBox(LAYOUT)
    assert box.explanation is not None
    assert box._repr_mimebundle_()[0]["text/html"] == box.explanation._repr_html_()
    assert "Paste a text" in PasteBox()._repr_mimebundle_()[0]["text/html"]
    assert repr(PasteBox()) == "PasteBox(empty)"
