"""What `explain` accepts, and what it says about texts that it does not know."""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshlab as ml
from meshlab.base._documents import LimitError
from meshlab.base._errors import ParseError
from meshlab.diagnosis._findings import TextFinding, rule
from meshlab.diagnosis._paste import Paste
from tests.diagnosis.texts_with_rules import RULES, printer_text
from tests.examples import examples


def test_a_text_its_bytes_and_its_file_have_the_same_explanation(tmp_path: Path) -> None:
    text = printer_text()
    path = tmp_path / "printer.log"
    path.write_bytes(gzip.compress(text.encode("utf-16")))
    for source in (text, text.encode(), path, str(path), path.read_bytes()):
        explanation = ml.explain(source, rules=RULES)
        assert [item.code for item in explanation.findings] == [
            "paper-jam",
            "low-toner",
            "job-cancelled",
            "paper-loaded",
        ]
    assert ml.explain(path, rules=RULES).paste.name == str(path)


def test_several_files_are_explained_together_with_their_names(tmp_path: Path) -> None:
    call = {"pg_id": 0, "process_group": ["0", "default_pg"], "profiling_name": "nccl:all_reduce", "p2p_seq_id": 0}
    for rank, last, state in ((0, 8, "started"), (10, 7, "completed")):
        entries = [
            {**call, "collective_seq_id": n, "state": "completed" if n < 8 else state} for n in (7, 8)[: last - 6]
        ]
        dump = {"version": "2.4", "pg_config": {"0": {"desc": "default_pg", "ranks": "[0, 10]"}}, "entries": entries}
        (tmp_path / f"nccl_trace_rank_{rank}.json").write_text(json.dumps(dump))
    explanation = ml.explain(sorted(tmp_path.iterdir()))
    (finding,) = (item for item in explanation.findings if item.severity == "error")
    assert (finding.code, finding.subject.split(",")[0]) == ("rank-missing", "rank 10")
    assert ml.explain([printer_text(), printer_text()], rules=RULES).findings[0].lines == (5, 10)


def test_root_causes_come_first_and_consequences_name_them() -> None:
    causes = {item.code: item.follows for item in ml.explain(printer_text(), rules=RULES).findings}
    assert causes == {"paper-jam": None, "low-toner": None, "job-cancelled": "paper-jam", "paper-loaded": None}


@pytest.mark.parametrize(
    ("text", "described"),
    [
        ("", "the text is empty"),
        ("hello\nworld", "the text begins with 'hello'"),
        (b"\0\1\2\3" * 100, "the file is binary"),
        ("<html><body>404</body></html>", "the text is XML that begins with <html>"),
    ],
)
def test_a_text_that_nobody_knows_is_described_with_what_could_be_pasted(text: str | bytes, described: str) -> None:
    with pytest.raises(ParseError) as caught:
        ml.explain(text)
    message = str(caught.value)
    assert message.startswith(f"nothing was recognised: {described}")
    assert "paste " in message
    assert "a log of nccl-tests" in message
    assert "\n" not in message.splitlines()[0]


def test_a_name_of_no_file_is_a_mistyped_path() -> None:
    problem = "^nothing was recognised: no file 'no_such.log' exists; check the path, or pass the text itself$"
    for function in (ml.explain, ml.read):
        with pytest.raises(ParseError, match=problem):
            function("no_such.log")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            pickle.dumps({"entries": []}),
            "which is not opened because a pickle can run code; .* convert your own dump to JSON",
        ),
        (b"\x7fELF\x02\x01", "this is a program or a core dump; pass its output"),
        (b"PK\x03\x04rest", "this is a zip archive; unpack it"),
        (b"\x89PNG\r\n", "this is a picture; copy the text itself"),
    ],
)
def test_binary_files_are_refused_with_what_to_pass_instead(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    for source in (content, path, str(path)):
        with pytest.raises(ParseError, match=message):
            ml.explain(source)


class _Trap:
    """An object that creates a file when its pickle is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (self.path,)


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    for protocol in range(2, 6):
        with pytest.raises(ParseError, match="json"):
            ml.explain(pickle.dumps(_Trap(tmp_path / "opened"), protocol))
    for protocol in range(2):  # without a header
        with pytest.raises(ParseError):
            ml.explain(pickle.dumps(_Trap(tmp_path / "opened"), protocol))
    assert not (tmp_path / "opened").exists()


def test_a_folder_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ParseError, match="this is a folder"):
        ml.explain(tmp_path)
    with pytest.raises(FileNotFoundError):
        ml.explain(tmp_path / "missing.log")


def test_a_rule_that_raises_does_not_hide_the_others() -> None:
    @rule("broken", "A broken rule", source="none")
    def broken(paste: Paste) -> Iterator[TextFinding]:
        raise ZeroDivisionError("oops")
        yield

    findings = ml.explain(printer_text(), rules=[broken, *RULES]).findings
    assert findings[0].code == "paper-jam"
    failure = next(item for item in findings if item.code == "rule-failed")
    assert failure.subject == "the rule broken"
    assert "ZeroDivisionError: oops" in failure.why


LINES = st.lists(
    st.one_of(
        st.sampled_from(printer_text().splitlines()),
        st.text(max_size=30),
        st.sampled_from(
            [
                "# nThread 1 nGpus 8 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 5 iters: 20",
                "   1048576   262144   float   sum   -1   35.1  29.8  52.2   0",
                '<system version="1">',
                "SwitchName=s1 Nodes=n[1-4]",
                "DeviceMesh('cuda', [[0, 1]], mesh_dim_names=('dp', 'tp'))",
                "--tensor-model-parallel-size 8",
                "node1:12:34 [0] NCCL INFO Connected all rings",
                "[rank3]:[E ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective operation timeout",
                '{"version": "2.4", "entries": [',
                "GPU0\t X \tNV18\tSYS",
                "NVRM: Xid (PCI:0000:b3:00): 79, GPU has fallen off the bus.",
            ]
        ),
    ),
    max_size=12,
)


@settings(deadline=None, max_examples=examples(150))
@given(LINES, st.integers(0, 200))
def test_any_text_cut_anywhere_is_explained_or_refused_without_a_rule_that_fails(lines: list[str], cut: int) -> None:
    text = "\n".join(lines)[cut:] + "\n"
    try:
        explanation = ml.explain(text, rules=[*ml.diagnosis.RULES, *RULES])
    except ParseError:
        return
    assert "rule-failed" not in {item.code for item in explanation.findings}
    for face in (str(explanation), explanation.to_markdown(), explanation._repr_html_(), explanation.to_json()):
        face.encode("utf-8")
    for item in explanation.all_findings:
        assert all(1 <= number <= len(explanation.paste) for number in item.lines)


def test_a_text_that_would_take_minutes_is_refused_with_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ml.diagnosis._explain, "_MOST_CHARACTERS", 3_000)
    text = "nodeA:1:2 [0] NCCL INFO Connected all rings\n" * 100
    for function in (ml.explain, ml.read):
        with pytest.raises(LimitError, match=r"the text has 4,[34]"):
            function(text)


def test_a_matrix_with_cut_rows_is_refused_and_not_called_asymmetric() -> None:
    names = [f"GPU{number}" for number in range(3_000)]
    rows = ["GPU0\t X \t" + "\t".join(["NV18"] * 2_999), "GPU1\tNV18\t X \t" + "\t".join(["NV18"] * 2_998)]
    text = "\t".join(["", *names]) + "\n" + "\n".join(rows) + "\n"
    assert ml.topology.read(text).n_devices == 3_000
    with pytest.raises(LimitError, match="lines of more than"):
        ml.explain(text)


def test_strings_of_a_long_text_without_repetition_are_found() -> None:
    text = "\n".join(f"{chr(97 + number % 26)}{number * 7919:x} step {number * 31:o} loss" for number in range(40_000))
    paste = Paste(text)
    for literal in ("step 0", " loss\nb", "zq step", "lossy", "q", "ab", "k1eef step", "Watchdog caught"):
        assert paste.may_contain(literal) or literal not in text
    assert not paste.may_contain("Watchdog caught")
    assert [paste.raw(number)[:3] for number in paste.numbers("step 37 ")] == ["b1e"]
