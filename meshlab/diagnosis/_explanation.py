"""The explanation of a pasted text: what was recognised, what it shows, what is wrong, and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from meshlab.base._errors import BenchError, did_you_mean
from meshlab.base._outcome import Outcome
from meshlab.diagnosis._findings import FINDING_FIELDS, LEVELS, Rule, TextFinding
from meshlab.diagnosis._html import as_html
from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis._redaction import redact_finding, redact_seen, redactor_for
from meshlab.diagnosis._seen import Seen, Span, frame_of
from meshlab.diagnosis._text import as_brief, as_json, as_markdown, as_text, verdict

if TYPE_CHECKING:
    import pandas as pd

    from meshlab.mesh._mesh import DeviceMesh
    from meshlab.topology.model._cluster import Cluster


@dataclass(frozen=True, repr=False)
class Explanation:
    """What a pasted text shows, what is wrong, and what to do. `explain` returns it.

    Parameters
    ----------
    paste : Paste
        The text.
    recognised : tuple of Span
        The lines that were recognised, by format.
    all_findings : tuple of TextFinding
        The findings and the lines that only look wrong: root causes before their consequences, most severe first.
    seen : tuple of Seen
        What each format shows.

    Examples
    --------
    >>> import meshlab as ml
    >>> explanation = ml.explain("init_device_mesh('cuda', (2, 4), mesh_dim_names=('dp', 'tp'))")
    >>> print(explanation)
    No known problem found in 1 line (mesh).
    <BLANKLINE>
    The text shows
      mesh  dp=2, tp=4: 8 ranks, axes dp of 2, tp of 4
    <BLANKLINE>
    Recognised: mesh (line 1).
    """

    paste: Paste
    recognised: tuple[Span, ...]
    all_findings: tuple[TextFinding, ...]
    seen: tuple[Seen, ...]

    @property
    def verdict(self) -> str:
        """The most important finding and the number of the others, in a sentence or two."""
        return verdict(self)

    @property
    def outcome(self) -> Outcome:
        """``"failed"`` if the text shows an error, and ``"passed"`` if it shows that everything it reports is healthy.

        Otherwise ``"not decided"``: a log without a known problem is no proof that the job was healthy.
        """
        severities = {finding.severity for finding in self.all_findings}
        if "error" in severities:
            return "failed"
        is_healthy = any(finding.code == "nothing-wrong" for finding in self.all_findings)
        return "passed" if is_healthy and "warning" not in severities else "not decided"

    @property
    def findings(self) -> tuple[TextFinding, ...]:
        """What is wrong or worth knowing: root causes before their consequences, most severe first."""
        return tuple(finding for finding in self.all_findings if finding.severity != "normal")

    @property
    def normal(self) -> tuple[TextFinding, ...]:
        """What looks wrong but is normal."""
        return tuple(finding for finding in self.all_findings if finding.severity == "normal")

    @property
    def facts(self) -> Mapping[str, str]:
        """What the text shows: versions, ranks, hosts, GPUs and so on, by name."""
        return MappingProxyType({name: value for seen in self.seen for name, value in seen.facts.items()})

    @property
    def cluster(self) -> Cluster | None:
        """The hardware, if the text describes it."""
        return next((seen.cluster for seen in self.seen if seen.cluster is not None), None)

    @property
    def mesh(self) -> DeviceMesh | None:
        """The mesh, if the text defines one."""
        return next((seen.mesh for seen in self.seen if seen.mesh is not None), None)

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables that `table` returns."""
        return tuple(dict.fromkeys(name for seen in self.seen for name in seen.frames))

    def table(self, name: str) -> pd.DataFrame:
        """Return a table of what the text shows, such as ``"communicators"``, ``"channels"`` or ``"calls"``.

        Raises
        ------
        BenchError
            If the text has no such table.
        """
        import pandas as pd

        if not (frames := [seen.frames[name]() for seen in self.seen if name in seen.frames]):
            raise BenchError(f"the text has no table {name!r}", hint=did_you_mean(name, self.tables))
        return frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True)

    def frame(self) -> pd.DataFrame:
        """Return the findings as a table with one row each.

        Returns
        -------
        pandas.DataFrame
            ``severity``, ``code``, ``title``, ``subject``, ``why``, ``do``, ``lines`` (a tuple of line numbers) and
            ``follows``. What looks wrong but is normal is included.
        """
        return frame_of(self.all_findings, *FINDING_FIELDS)

    def brief(self) -> str:
        """Return the errors and warnings in a few lines, for the message of an exception. Empty if there are none."""
        return as_brief(self)

    def redacted(self) -> Explanation:
        """Return a copy with hashes instead of what identifies hosts, users and hardware, and without secrets.

        This includes the text. See `RunData.redacted` for what is replaced. A name that nothing in the text identifies
        as one is kept.

        Examples
        --------
        >>> import meshlab as ml
        >>> text = "node7:41:52 [0] NCCL WARN Call to connect to 10.0.0.4<41301> failed : Connection refused"
        >>> "node7" in str(ml.explain(text)), "node7" in str(ml.explain(text).redacted())
        (True, False)
        """
        redactor = redactor_for(self.paste, self.all_findings, self.seen)
        name = None if self.paste.name is None else redactor.text(self.paste.name)
        paste = Paste(redactor.text(self.paste.text), name)
        findings = tuple(redact_finding(finding, redactor) for finding in self.all_findings)
        return Explanation(paste, self.recognised, findings, tuple(redact_seen(part, redactor) for part in self.seen))

    def to_markdown(self) -> str:
        """Return the explanation as Markdown for an issue. Nothing that was pasted is interpreted in it."""
        return as_markdown(self)

    def to_json(self) -> str:
        """Return the explanation as JSON.

        It has the keys ``verdict``, ``outcome``, ``recognised``, ``findings``, ``normal`` and ``facts``.
        """
        return as_json(self)

    def __str__(self) -> str:
        return as_text(self)

    def __repr__(self) -> str:
        codes = ", ".join(dict.fromkeys(item.code for item in self.findings)) or "no problem found"
        return f"<Explanation: {codes}; next: print(…), .frame(), .to_markdown()>"

    def _repr_html_(self) -> str:
        return as_html(self)


def sort_findings(findings: Iterable[TextFinding], rules: Iterable[Rule]) -> tuple[TextFinding, ...]:
    """Order findings, root causes and severe ones first, without the healthy ones if any is serious."""
    items = list(findings)
    if serious := {item.code for item in items if item.severity in ("error", "warning")}:
        items = [item for item in items if item.code != "nothing-wrong"]
    causes: dict[str, list[str]] = {}
    for rule in rules:
        for code in rule.causes:
            causes.setdefault(code, []).append(rule.code)
    marked = []
    for item in items:
        possible = (code for code in causes.get(item.code, ()) if code in serious and code != item.code)
        cause = item.follows or (next(possible, None) if item.severity != "normal" else None)
        marked.append(replace(item, follows=cause))
    levels = list(LEVELS)
    is_minor = {name: number > 1 for number, name in enumerate(levels)}  # info and normal come last
    return tuple(
        sorted(
            marked, key=lambda item: (is_minor[item.severity], item.follows is not None, levels.index(item.severity))
        )
    )
