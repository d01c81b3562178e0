"""A training job that options describe, for ``meshlab search`` and ``meshlab rehearse``."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields

from meshlab.base._errors import BenchError, MeshlabError, did_you_mean

_ASSIGNMENT = re.compile(r"(?<!× )\b(\w+)(?:=| = )(?:'(\w+)'|(\w+))?")


def job_fields(words: Sequence[str]) -> dict[str, object]:
    """Parse changes of a job, such as ``global_batch=64``.

    Examples
    --------
    >>> job_fields(["global_batch=64", "sequence_parallel=false", "recompute=full"])
    {'global_batch': 64, 'sequence_parallel': False, 'recompute': 'full'}
    """
    from meshlab.prediction._job import Job

    names = [field.name for field in fields(Job)]
    changes: dict[str, object] = {}
    for word in words:
        name, equals, text = (part.strip() for part in word.partition("="))
        if not equals or name not in names:
            raise BenchError(
                f"--set {word} is not a change of the job{did_you_mean(name, names)}",
                hint=f"write --set global_batch=64; the fields are {', '.join(names)}",
            )
        value: object = text
        if text.lower() in ("true", "false"):
            value = text.lower() == "true"
        else:
            with contextlib.suppress(ValueError):
                value = int(text)
        changes[name] = value
    return changes


@contextlib.contextmanager
def job_hints(*names: str) -> Iterator[None]:
    """Replace arguments in the hints of errors by options: ``--set`` for fields of the job, or an option of that name.

    Examples
    --------
    >>> with job_hints("tp"):
    ...     raise MeshlabError("too large", hint="use tp=4, or pass recompute='full' and zero=3")
    Traceback (most recent call last):
    meshlab.errors.MeshlabError: too large; use --tp 4, or pass --set recompute=full and --set zero=3
    """
    from meshlab.prediction._job import Job

    known = {field.name for field in fields(Job)}

    def option(found: re.Match[str]) -> str:
        name, value = found[1], found[2] or found[3]
        if name in names:
            return f"--{name} {value or 'N'}"
        return f"--set {name}={value or 'N'}" if name in known else found[0]

    try:
        yield
    except MeshlabError as error:
        raise error.with_hint(_ASSIGNMENT.sub(option, error.hint)) from None
