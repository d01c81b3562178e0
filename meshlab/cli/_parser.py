"""The parsers of the command line: of all commands, and of each of them."""

from __future__ import annotations

import argparse
import re
import shutil
import textwrap
from collections.abc import Sequence
from typing import Any, NoReturn

from meshlab.base._errors import did_you_mean, similar_name
from meshlab.cli._arguments import Command
from meshlab.cli._output import BAD_INPUT
from meshlab.engines._launchers import launched_as

_WIDTH = 79  # of descriptions, in a terminal that is not narrower
_SIDE_BY_SIDE = 100  # columns from which on an example is explained in its line
_SYNONYMS = {"nranks": "--ranks", "np": "--ranks", "nproc": "--ranks", "output": "--out", "quick": "--sampling quick"}
_WORDS = re.compile(r'(?:"[^"]*"|\S)+')


def is_first_process() -> bool:
    """Return False on all ranks but the first of mpiexec or srun, so that a message appears once."""
    process = launched_as()
    return process is None or process[0] == 0


class Parser(argparse.ArgumentParser):
    """A parser that keeps the line breaks of descriptions, and reports an error on one rank only."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        options["formatter_class"] = argparse.RawDescriptionHelpFormatter
        super().__init__(*arguments, **options)
        self._similar: argparse.ArgumentParser | None = None  # of the command that an unknown one resembles

    def error(self, message: str) -> NoReturn:
        if not is_first_process():
            self.exit(BAD_INPUT)
        if self._similar is not None:
            self.usage = self._similar.format_usage().removeprefix("usage: ").rstrip()
        super().error(message)

    def parse_known_args(self, *arguments: Any, **options: Any) -> Any:
        words = arguments[0] if arguments else options.get("args")
        if words and words[0].startswith("-") and not isinstance(self, CommandParser):
            name = words[0].partition("=")[0]
            if name.startswith("--") and not any(option.startswith(name) for option in self.option_names):
                self.error(self.unrecognized(words[:1]))
        return super().parse_known_args(*arguments, **options)

    @property
    def option_names(self) -> list[str]:
        """The options, without those that the help does not show."""
        actions = [action for action in self._actions if action.help != argparse.SUPPRESS]
        return [name for action in actions for name in action.option_strings]

    def unrecognized(self, words: Sequence[str]) -> str:
        """Return the message about words that are no arguments, with the most similar option of the first."""
        name = next((word for word in words if word.startswith("-")), "").partition("=")[0]
        names = self.option_names
        synonyms = {word: option for word, option in _SYNONYMS.items() if option.split()[0] in names}
        similar = did_you_mean(name, [option for option in names if option.startswith("--")], synonyms=synonyms)
        return f"unrecognized arguments: {' '.join(words)}{similar if name else ''}"

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        choices = action.choices
        if choices is None or value in choices:
            return
        names = [str(choice) for choice in choices]
        text = f"{value!r}{did_you_mean(value, names)}; choose one of {', '.join(names)}"
        if not isinstance(action, argparse._SubParsersAction):
            raise argparse.ArgumentError(action, f"invalid choice: {text}")
        similar = similar_name(value, names)
        self._similar = None if similar is None else action.choices[similar]
        raise argparse.ArgumentError(None, f"unknown command {text}")


class CommandParser(Parser):
    """The parser of one command, which gets its arguments when they are needed: all of them take a while to add."""

    command: Command | None = None

    def parse_known_args(self, *arguments: Any, **options: Any) -> Any:
        if self.command is not None:
            self.command.add_options(self)
            self.command = None
        words = arguments[0] if arguments else options.get("args")
        for word in words or ():
            if word == "--":
                break
            # argparse reads -out as the option -o with the value ut.
            if re.match(r"-[a-z][a-z-]", word) and f"-{word.partition('=')[0]}" in self.option_names:
                self.error(self.unrecognized([word]))
        namespace, rest = super().parse_known_args(*arguments, **options)
        if rest:  # here, because the parser of all commands would show its own usage
            self.error(self.unrecognized(rest))
        return namespace, rest

    def format_usage(self) -> str:
        if self.command is not None:
            self.command.add_options(self)
            self.command = None
        return super().format_usage()


def folded(text: str) -> str:
    """Wrap the paragraphs of a description to the width of the help. Those that are indented have a hanging indent."""
    width = min(_WIDTH, shutil.get_terminal_size().columns - 2)
    lines = text.split("\n")
    hanging = [" " * 4 if line.startswith(" ") else "" for line in lines]
    return "\n".join(
        textwrap.fill(line, width, break_on_hyphens=False, subsequent_indent=indent)
        for line, indent in zip(lines, hanging, strict=True)
    )


def examples_text(examples: Sequence[tuple[str, str]]) -> str:
    """Return commands with their explanations: to the right if the terminal is wide, and otherwise below."""
    columns = shutil.get_terminal_size().columns
    if columns >= _SIDE_BY_SIDE:
        width = max(len(command) for command, _ in examples)
        return "\n".join(f"  {command:<{width}}  {meaning}" for command, meaning in examples)
    lines = []
    for command, meaning in examples:
        line = " "
        for word in _WORDS.findall(command):
            if len(line) + len(word) + 4 > columns:
                lines.append(f"{line} \\")
                line = "   "
            line += f" {word}"
        lines.append(line)
        lines += textwrap.wrap(meaning, columns - 2, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join(lines)
