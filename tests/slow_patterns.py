"""Finds regular expressions of meshlab that take more than linear time.

Run ``python -m tests.slow_patterns``. For each repetition in each compiled pattern of a module, a text is built that
matches up to the repetition, repeats it many times, and then does not match. The time for a text of twice the length
shows the order of growth.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import pkgutil
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

import meshlab

UNBOUNDED = 1000
_TAILS = ("\0", "x", "\n", "")


def patterns() -> Iterator[tuple[str, re.Pattern[str], set[str]]]:
    """Yield all compiled patterns of modules of meshlab, with their names, and the methods by which they are used."""
    seen = set()
    for info in pkgutil.walk_packages(meshlab.__path__, "meshlab."):
        if info.name.endswith("__main__"):
            continue
        try:
            module = importlib.import_module(info.name)
        except ImportError:  # of a GPU library
            continue
        source = Path(info.module_finder.find_spec(info.name).origin).read_text()  # type: ignore[union-attr]
        for line, method, pattern in _written_in_calls(source):
            if pattern not in seen:
                seen.add(pattern)
                yield f"{info.name}.{line}", pattern, {method}
        for name, value in vars(module).items():
            methods = set(re.findall(rf"\b{name}\.(\w+)\(", source)) or {"search"}
            values = (
                value if isinstance(value, (list, tuple)) else value.values() if isinstance(value, dict) else [value]
            )
            for one in values:
                parts = vars(one).values() if dataclasses.is_dataclass(one) and hasattr(one, "__dict__") else (one,)
                for pattern in one if isinstance(one, tuple) else parts:
                    if isinstance(pattern, re.Pattern) and isinstance(pattern.pattern, str) and pattern not in seen:
                        seen.add(pattern)
                        yield f"{info.name}.{name}", pattern, methods


def _written_in_calls(source: str) -> Iterator[tuple[int, str, re.Pattern[str]]]:
    """Yield the patterns of calls such as ``re.search(r"a+", text)``, with the line and the method."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="re"), attr=method), args=[ast.Constant(value=str(text)), *_]
            ) if method not in ("compile", "escape"):
                flags = re.MULTILINE if "MULTILINE" in ast.unparse(node) else 0
                yield node.lineno, method, re.compile(text, flags)


def hostile_texts(pattern: re.Pattern[str], length: int) -> Iterator[str]:
    """Yield texts that repeat a part of a pattern up to a length."""
    for before, item in _repeats(list(parser.parse(pattern.pattern, pattern.flags)), ""):
        if item:
            for tail in _TAILS:
                yield before + item * (length // len(item)) + tail
                yield (before + item * 3) * (length // len(before + item * 3)) + tail


def _repeats(tree: list[Any], before: str) -> Iterator[tuple[str, str]]:
    """Yield a text that matches up to each unbounded repetition, and a text that the repetition matches once."""
    for code, argument in tree:
        if code in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
            _, most, inner = argument
            yield from _repeats(list(inner), before)
            if most > UNBOUNDED:
                yield before, _sample(list(inner))
                if _sample(list(inner)).strip():
                    yield before, " "
        elif code is codes.SUBPATTERN:
            yield from _repeats(list(argument[3]), before)
        elif code is codes.BRANCH:
            for branch in argument[1]:
                yield from _repeats(list(branch), before)
        elif code is codes.ASSERT:
            yield from _repeats(list(argument[1]), before)
        before += _sample([(code, argument)])


def _sample(tree: list[Any]) -> str:
    """Return a text that a part of a pattern matches."""
    text = ""
    for code, argument in tree:
        if code is codes.LITERAL:
            text += chr(argument)
        elif code is codes.NOT_LITERAL:
            text += "a" if argument != ord("a") else "b"
        elif code is codes.ANY:
            text += "a"
        elif code is codes.IN:
            text += _of_set(argument)
        elif code in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
            least, most, inner = argument
            text += _sample(list(inner)) * max(least, min(1, most))
        elif code is codes.SUBPATTERN:
            text += _sample(list(argument[3]))
        elif code is codes.BRANCH:
            text += _sample(list(argument[1][0]))
    return text


def _of_set(items: list[Any]) -> str:
    wanted = re.compile("".join(["[", *map(_item, items), "]"]))
    return next((sign for sign in "a1 -_.:/,A[]{}\"'<>()=\n\t#|@+*" if wanted.fullmatch(sign)), "a")


def _item(item: Any) -> str:
    code, argument = item
    if code is codes.NEGATE:
        return "^"
    if code is codes.LITERAL:
        return re.escape(chr(argument))
    if code is codes.RANGE:
        return f"{re.escape(chr(argument[0]))}-{re.escape(chr(argument[1]))}"
    return {
        codes.CATEGORY_DIGIT: r"\d",
        codes.CATEGORY_NOT_DIGIT: r"\D",
        codes.CATEGORY_SPACE: r"\s",
        codes.CATEGORY_NOT_SPACE: r"\S",
        codes.CATEGORY_WORD: r"\w",
        codes.CATEGORY_NOT_WORD: r"\W",
    }[argument]


def seconds(pattern: re.Pattern[str], methods: set[str], text: str, *, most: float = 0.3) -> float:
    """Return the time to use a pattern on a text. It is limited."""
    start = time.process_time()
    signal.signal(signal.SIGVTALRM, _stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, most)
    try:
        if methods - {"match", "fullmatch"}:
            for _ in pattern.finditer(text):
                pass
        if "match" in methods:
            pattern.match(text)
        if "fullmatch" in methods:
            pattern.fullmatch(text)
    except TimeoutError:
        return most
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return time.process_time() - start


def _stop(number: int, frame: Any) -> None:
    raise TimeoutError


def slow_patterns(length: int = 4000, most: float = 0.02) -> Iterator[tuple[str, str, float]]:
    """Yield the name and the text of each pattern that takes long for a text of a length, and the time."""
    for name, pattern, methods in patterns():
        for text in hostile_texts(pattern, length):
            found = seconds(pattern, methods, text)
            if found > most and (found := min(found, seconds(pattern, methods, text))) > most:
                yield name, text, found
                break


def main() -> None:
    """Print the slow patterns."""
    n = sum(1 for _ in patterns())
    print(f"{n} patterns")
    for name, text, worst in slow_patterns():
        print(f"{worst * 1e3:8.1f} ms  {name}  {text[:50]!r}…{text[-10:]!r}", flush=True)


if __name__ == "__main__":
    main()
