"""A report as Markdown with GitHub's tables, in the order of the HTML page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from meshlab.base._markup import markdown_text
from meshlab.mesh._groups import Groups
from meshlab.report._answers import Answer
from meshlab.report._pictures import Pictures, ReportPicture
from meshlab.report._tables import ReportTable
from meshlab.report._words import code_parts

if TYPE_CHECKING:
    from meshlab.report._report import Content


def markdown_page(
    content: Content,
    groups: Sequence[Groups],
    pictures: Pictures | None = None,
    file_of: Callable[[ReportPicture], str] | None = None,
) -> str:
    """Render the Markdown document, in the order of the HTML page."""

    def gallery(figures: Iterable[ReportPicture]) -> Iterable[str]:
        for picture in figures if pictures is not None else ():
            name = picture.name if file_of is None else file_of(picture)
            yield from (f"![{markdown_text(picture.text)}](<{name}>)", "")

    drawn = Pictures([], [], [], []) if pictures is None else pictures
    lines = [f"# {markdown_text(content.title)}", "", markdown_text(content.where), ""]
    lines += [f"**{_marked(content.headline)}**", ""]
    lines += [f"- **{content.next_step.question}** {_advice(content.next_step)}"]
    if content.stages:
        lines += [f"- **{stage.question}** {_marked(stage)}" for stage in content.stages]
        lines += ["", "## Measurements", ""]
    lines += [f"- **{answer.question}** {_marked(answer)}" for answer in content.answers] + [""]
    if content.nodes is not None:
        lines += ["## Hosts", "", *_rendered(content.nodes), *gallery(drawn.nodes)]
    if content.caveats:
        lines += ["## Caveats", "", *(f"- {markdown_text(caveat)}" for caveat in content.caveats), ""]
    if content.machine:
        lines += ["## Machine", "", *gallery(drawn.machines)]
        lines += [*(f"- {markdown_text(sentence)}" for sentence in content.machine), ""]
    if groups:
        rows = [[group.name, f"{len(group):,}", f"{group.size:,}", repr(group[0])] for group in groups]
        lines += ["## Groups", "", *_table(["axis", "groups", "ranks each", "first group"], rows, numbers=False), ""]
        lines += gallery(drawn.memberships)
    if drawn.curves:
        lines += ["## Bandwidth and latency", ""]
        for _, curves in drawn.curves:
            lines += gallery(curves)
    if content.pivots:
        lines += ["## Results", ""]
        for table in content.pivots:
            lines += _titled(table)
    if content.expected is not None:
        lines += ["## Expected performance", "", *_rendered(content.expected)]
        lines += [] if content.published is None else _titled(content.published)
    if content.loads:
        lines += [f"## {content.loads_title}", "", *gallery(drawn.matrices)]
        for table in content.loads:
            lines += _titled(table)
    if content.traffics or drawn.traffics:
        lines += ["## Traffic", "", *gallery(drawn.traffics)]
        for table in content.traffics:
            lines += _titled(table)
    if content.tuning is not None:
        tuned = content.tuning
        lines += ["## Tuning", "", markdown_text(tuned.title), "", *gallery(drawn.tunings)]
        lines += [*_table(tuned.header, [[cell.text for cell in row] for row in tuned.rows], numbers=False), ""]
        lines += [f"{tuned.more:,} more rows are not shown.", ""] if tuned.more else []
        lines += [*map(_fact, tuned.facts), ""]
    if content.trace is not None:
        lines += ["## Job", "", markdown_text(content.trace.title), ""]
        lines += [*(f"- {markdown_text(sentence)}" for sentence in content.trace.sentences), ""]
        lines += gallery(drawn.traces)
        for table in content.trace.tables:
            lines += _titled(table)
    for title, section in (("Thresholds", content.thresholds), ("Changes since the baseline", content.changed)):
        if section is not None:
            lines += [f"## {title}", "", *_rendered(section)]
    lines += ["## Method", "", *map(_fact, content.method), ""]
    if content.repeat:
        lines += ["To repeat the measurement:", "", "```", content.repeat.replace("`", "'"), "```", ""]
    if content.environment:
        lines += ["## Environment", "", *(_titled(content.hosts) if content.hosts is not None else [])]
    for name, pairs in content.environment:
        lines += [f"### {markdown_text(name)}", ""] if name else []
        lines += [*_table(["key", "value"], pairs, numbers=False), ""]
    return "\n".join(lines).rstrip() + "\n"


def _fact(pair: tuple[str, str]) -> str:
    return "- **{}**: {}".format(*map(markdown_text, pair))


def _marked(answer: Answer) -> str:
    """Return the sentences of an answer behind its sign."""
    sign = f"{answer.sign} " if answer.sign else ""
    return sign + markdown_text(" ".join(answer.sentences))


def _advice(answer: Answer) -> str:
    """Return the sentences of the next step, whose commands are code."""
    parts = code_parts(" ".join(answer.sentences))
    return "".join(f"`{part}`" if is_code else markdown_text(part) for is_code, part in parts)


def _titled(table: ReportTable) -> Iterator[str]:
    yield from (f"### {markdown_text(table.title)}", "")
    yield from _rendered(table)


def _rendered(table: ReportTable) -> Iterator[str]:
    rows = [[cell.text for cell in row] for row in table.rows]
    yield from (*_table(table.names, rows, numbers=not set(table.texts) - {0}), "")
    if table.more:
        yield from (f"{table.more:,} more rows are not shown.", "")


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool) -> list[str]:
    rule = "|" + ("---:" if numbers else "---") + ("|---:" if numbers else "|---") * (len(header) - 1) + "|"
    return [_row(header), rule, *(_row(row) for row in rows)]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(markdown_text(cell) for cell in cells)} |"
