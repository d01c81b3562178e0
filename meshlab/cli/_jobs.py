"""A training job that options describe, for ``meshlab search`` and ``meshlab rehearse``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import fields

from meshlab.base._errors import BenchError, MeshlabError, did_you_mean
from meshlab.base._hints import Advice, Argument, Hint
from meshlab.cli._output import option_text


def job_fields(words: Sequence[str]) -> dict[str, object]:
    """Parse changes of a job, such as ``global_batch=64``, ``sequence_parallel=false`` or ``recompute=full``."""
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
                value = float(text) if name == "skew" else int(text)
        changes[name] = value
    return changes


@contextlib.contextmanager
def job_hints(*names: str) -> Iterator[None]:
    """Replace arguments in the hints of errors by options: ``--set`` for fields of the job, or options of `names`."""
    from meshlab.prediction._job import Job

    of_job = {field.name for field in fields(Job)}

    def words(part: Argument | Advice) -> str:
        if isinstance(part, Argument) and part.name in of_job.union(names):
            value = "N" if part.value is None else part.value
            return f"--{part.name} {value}" if part.name in names else f"--set {part.name}={value}"
        return option_text(part)

    try:
        yield
    except MeshlabError as error:
        raise error.with_hint(error.hint.reworded(words) if isinstance(error.hint, Hint) else error.hint) from None
