"""The Python blocks of the README and of each page run in one process, and their outputs are those in the comments."""

from __future__ import annotations

import ast
import io
import itertools
import json
import os
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest

from meshlab.frames._table import MODES_MARK

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md"] + [
    DOCS / f"{name}.md" for name in ("tour", "nccl_tests", "frameworks", "machines", "normal", "hangs", "ci")
]

TIMED = ("table()", "contention()", "interference()", "matrix()")
"""Statements with one of these print times, so only the rest of their output is compared."""


class Statement(NamedTuple):
    """A statement of a block, and the output that its comments show; None if there is none."""

    source: str
    expected: str | None


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def statements(block: str) -> Iterator[Statement]:
    """Split a block into statements.

    The comments at the end of an expression and below it are its output, and so are those below try and with.
    A comment after any other statement, or after an expression that ends with a semicolon, is prose.
    """
    tokens = tokenize.generate_tokens(io.StringIO(block).readline)
    comments = {
        token.start[0]: token.string.removeprefix("#").removeprefix(" ")
        for token in tokens
        if token.type == tokenize.COMMENT
    }
    lines = block.splitlines()
    nodes = ast.parse(block).body
    for node, following in zip(nodes, [*nodes[1:], None], strict=True):
        end = node.end_lineno or node.lineno
        next_line = len(lines) + 1 if following is None else following.lineno
        found = [comments[number] for number in range(end, next_line) if number in comments]
        rest = lines[end - 1].encode()[node.end_col_offset :].decode()
        is_output = found and isinstance(node, (ast.Expr, ast.Try, ast.With)) and not rest.startswith(";")
        yield Statement(ast.get_source_segment(block, node) or "", "\n".join(found) if is_output else None)


def execute(page: Path) -> list[list[tuple[str, str, str]]]:
    """Execute all blocks in one namespace; return source, expected and real output of the statements with an output."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    done = []
    for block in python_blocks(page):
        compared = []
        for source, expected in statements(block):
            if expected is None:
                exec(compile(source, page.name, "exec"), namespace)
                continue
            value = None
            with redirect_stdout(io.StringIO()) as printed:
                if source.startswith(("try:", "with ")):
                    exec(compile(source, page.name, "exec"), namespace)
                else:
                    value = eval(compile(source, page.name, "eval"), namespace)
            compared.append((source, expected, printed.getvalue() + ("" if value is None else repr(value))))
        done.append(compared)
    return done


def normal(text: str, *, is_timed: bool) -> str:
    """Return a text with single spaces; without its numbers and the notes about them if they are times."""
    if is_timed:  # how certain the times are differs from run to run
        text = re.sub(rf"^{MODES_MARK}? ?Times .*$|{MODES_MARK}", "", text, flags=re.MULTILINE)
    return " ".join(re.sub(r"\d[\d,]*\.?\d*|NaN", "0", text).split() if is_timed else text.split())


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_blocks_of_a_page_have_the_outputs_in_their_comments(page: Path, tmp_path: Path) -> None:
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "MPLBACKEND": "agg"}
    done = subprocess.run(
        [sys.executable, __file__, str(page)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for source, expected, actual in itertools.chain(*json.loads(done.stdout.splitlines()[-1])):
        is_timed = any(name in source for name in TIMED)
        pattern = re.escape(normal(expected, is_timed=is_timed)).replace("…", ".*")
        assert re.fullmatch(pattern, normal(actual, is_timed=is_timed)), f"{source}\n{actual}"


def test_the_readme_is_short() -> None:
    lines = PAGES[0].read_text().splitlines()
    assert len(lines) <= 180
    assert len(python_blocks(PAGES[0])) == 5


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_shows_an_output_and_is_short(page: Path) -> None:
    for block in python_blocks(page):
        assert any(statement.expected for statement in statements(block)), block
        assert len([line for line in block.splitlines() if line and not line.startswith("#")]) <= 8, block
        assert len(block.splitlines()) <= 12, block


def test_the_comparison_with_nccl_tests_has_the_measured_numbers() -> None:
    import pandas as pd

    from tests.gpu.side_by_side import geometric_means, judge

    judged = judge(pd.read_csv(ROOT / "tests" / "gpu" / "side_by_side_2xH200.csv"))
    graph = judged[judged["mode"] == "graph"]
    means = geometric_means(graph)["graph"]
    small = graph[graph["size_bytes"] == 1024].set_index("collective")
    text = (DOCS / "measuring.md").read_text()
    rows = re.findall(r"^\| (\w+) \| ([\d.]+) µs \| ([\d.]+) µs \| ([\d.]+) \|$", text, re.MULTILINE)
    assert {name for name, *_ in rows} == set(means.index)
    for name, ours, theirs, ratio in rows:
        assert float(ours) == pytest.approx(small.loc[name, "meshlab_us"], abs=0.006)
        assert float(theirs) == pytest.approx(small.loc[name, "nccl_tests_us"], abs=0.006)
        assert float(ratio) == pytest.approx(means[name], abs=0.0006)


if __name__ == "__main__":
    from tests.quick_sampling import shorten_steps

    shorten_steps()
    print(json.dumps(execute(Path(sys.argv[1]))))
