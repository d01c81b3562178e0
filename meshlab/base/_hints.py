"""The fix of an error in the words of Python, with parts that a command line shows in its own words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a Python function, in whose place a command line shows its option."""

    name: str
    value: bool | int | float | str | None = None  # None if the caller chooses it
    equals: str = "="

    def __str__(self) -> str:
        return f"{self.name}{self.equals}{'' if self.value is None else repr(self.value)}"


@dataclass(frozen=True, slots=True)
class Advice:
    """Advice about Python objects, which do not exist in a command line."""

    text: str

    def __str__(self) -> str:
        return self.text


NEW_RANKS = Advice("call engines.restart() to start new ranks")
RANKS_LEFT = Advice("call engines.restart(hosts='left') for new ranks on the hosts that answer")
READ_A_FILE = Advice("read a file with ml.topology.read()")


class Hint(str):
    """A hint whose template has ``{}`` for each value. As a string, it is in Python's words; see also `reworded`."""

    parts: tuple[str | Argument | Advice, ...]

    def __new__(cls, template: str, *values: object) -> Hint:
        texts = template.split("{}")
        if len(texts) != len(values) + 1:
            raise ValueError(f"the template has {len(texts) - 1} places for {len(values)} values")
        parts: list[str | Argument | Advice] = [texts[0]]
        for value, text in zip(values, texts[1:], strict=True):
            if isinstance(value, Hint):
                parts += value.parts
            else:
                parts.append(value if isinstance(value, (Argument, Advice)) else str(value))
            parts.append(text)
        hint = super().__new__(cls, "".join(map(str, parts)))
        hint.parts = tuple(parts)
        return hint

    def __getnewargs__(self) -> tuple[object, ...]:  # type: ignore[override]  # copy and pickle call __new__ with these
        return "{}" * len(self.parts), *self.parts

    def reworded(self, words: Callable[[Argument | Advice], str]) -> str:
        """Return the text with other words for its arguments and advice."""
        return "".join(part if isinstance(part, str) else words(part) for part in self.parts)


MORE_TIME = Hint("pass a larger {}", Argument("timeout_s", equals=""))
