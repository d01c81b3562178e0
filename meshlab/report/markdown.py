"""A report as Markdown with GitHub's tables, for issues and pull requests."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from meshlab.mesh.groups import Groups

if TYPE_CHECKING:
    from meshlab.report.pictures import Picture, Pictures

__all__ = ["document"]


def document(
    content: dict[str, Any],
    groups: Sequence[Groups],
    pictures: Pictures | None = None,
    file_of: Callable[[Picture], str] | None = None,
) -> str:
    """Render the document; its order is that of the HTML page.

    Parameters
    ----------
    content : dict
        What `Report` gathered.
    groups : sequence of Groups
        What stands in the table of groups.
    pictures : Pictures, optional
        What to show as well.
    file_of : callable, optional
        From a picture to the name of its file.
    """

    def gallery(shown: Iterable[Picture]) -> Iterable[str]:
        for picture in shown:
            name = picture.name if file_of is None else file_of(picture)
            yield from (f"![{_escape(picture.text)}](<{name}>)", "")

    lines = [f"# {_escape(content['title'])}", "", _escape(content["where"]), ""]
    for number, sentence in enumerate(content["verdict"]):
        lines += [f"**{_escape(sentence)}**" if number == 0 else _escape(sentence), ""]
    if content["warnings"]:
        lines += ["Read with care:", "", *(f"- {_escape(warning)}" for warning in content["warnings"]), ""]
    if groups:
        rows = [[group.name, f"{len(group):,}", f"{group.size:,}", repr(group[0])] for group in groups]
        lines += ["## Groups", "", *_table(["axis", "groups", "ranks each", "first group"], rows, numbers=False), ""]
    if pictures is not None:
        lines += gallery(pictures.memberships)
    if content["machine"]:
        lines += ["## Machine", "", *(f"- {_escape(sentence)}" for sentence in content["machine"]), ""]
    if pictures is not None:
        lines += gallery(pictures.machines)
        lines += ["## Pairs", "", *gallery(pictures.matrices)] if pictures.matrices else []
        lines += ["## Curves", ""] if pictures.curves else []
        for name, drawn in pictures.curves:
            lines += [f"### {_escape(name)}", "", *gallery(drawn)]
    if content["tables"]:
        lines += ["## Results", ""]
    for table in content["tables"]:
        rows = [[cell.text for cell in row] for row in table.rows]
        lines += [f"### {_escape(table.title)}", "", *_table(table.header, rows, numbers=True), ""]
        if table.more:
            lines += [f"{table.more:,} more rows are not shown.", ""]
    if content["more_tables"]:
        lines += [f"{content['more_tables']:,} more tables are not shown.", ""]
    lines += ["## Method", "", *(f"- **{_escape(term)}**: {_escape(text)}" for term, text in content["method"]), ""]
    if content["environment"]:
        lines += ["## Environment", ""]
    for name, pairs in content["environment"]:
        lines += [f"### {_escape(name)}", ""] if name else []
        lines += [*_table(["key", "value"], pairs, numbers=False), ""]
    return "\n".join(lines).rstrip() + "\n"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool) -> list[str]:
    rule = "|" + ("---:" if numbers else "---") + ("|---:" if numbers else "|---") * (len(header) - 1) + "|"
    return [_row(header), rule, *(_row(row) for row in rows)]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_escape(cell) for cell in cells)} |"


def _escape(text: str) -> str:
    r"""Make any text safe to stand in a line or a cell: no markup, no HTML, no line breaks.

    Examples
    --------
    >>> print(_escape("a|b <script> all_reduce"))
    a\|b &lt;script&gt; all_reduce
    """
    text = re.sub(r"\s*[\r\n]+\s*", " ", text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # An underscore between letters is no emphasis on GitHub, and collectives are full of them.
    return re.sub(r"([\\`*|\[\]~])|(?<!\w)(_)|(_)(?!\w)", lambda match: "\\" + match[0], text)
