"""Settings of a framework that decide which ranks form groups: known ones, harmless ones and unknown ones.

Every reader of flags and configs has one `SettingTable`, so that no setting about parallelism disappears: it becomes an
axis, it is known to change no groups, or it is named in a warning or an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from meshlab.base._errors import MeshError, ParseError
from meshlab.mesh._axes import MAX_RANKS, as_integer, short

WORLD_SETTING = "world-size"
"""Setting with the number of ranks, for texts that contain it, such as a command of torchrun."""

UNNAMED = "unnamed-program"
"""Switch for a text that contains the name of a program, but not that of the framework whose flags it seems to have."""

_NUMBER = re.compile(r"-?[0-9]{1,12}")

_FALSE = ("0", "false", "none", "null", "no", "off", "~")

# Names of settings about parallelism: the word itself, or the abbreviation of an axis next to a word for a number.
_AXES = r"(?:d|t|p|c|s|e|m|et|ed|dc|pc|gt|us|hs|fs)(?:p|dp)"
_ABOUT_PARALLELISM = re.compile(
    rf"parallel|ulysses|(?:^|[-.]){_AXES}(?:$|-(?:size|degree|ranks|shards|instances))|"
    rf"(?:^|[-.])(?:num|n)-{_AXES}$|weight-shards|optimizer-instances|(?:^|-)(?:replicate|shard)-(?:size|degree)$"
)


def dashed(name: str) -> str:
    """Return the name of a flag, keyword or key without leading dashes, and with dashes for underscores."""
    return name.lstrip("-").replace("_", "-")


def is_off(value: Any) -> bool:
    """Return whether a setting with this value changes no groups: missing, false, or a size of 0 or 1."""
    return value is None or str(value).strip().lower() in ("", "1", *_FALSE)


def is_on(value: Any) -> bool:
    """Return whether a switch is on. The value of a flag without a value is an empty string."""
    return value is not None and str(value).strip().lower() not in _FALSE


def as_size(name: str, value: Any) -> int:
    """Return the value of a setting as an int, or raise a `ParseError`."""
    number = as_integer(value)
    if number is None and isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        number = int(value)
    if number is None and isinstance(value, float) and value.is_integer() and abs(value) <= MAX_RANKS:
        number = int(value)
    if number is None:
        raise ParseError(f"{name} has the value {short(value)}", hint=f"write a number, such as {name} 8")
    return number


@dataclass(frozen=True)
class SettingTable:
    """The settings of one framework that change groups."""

    framework: str  # its name in messages
    sizes: Mapping[str, str]  # axis of every setting with a size, by its name with dashes
    switches: tuple[str, ...] = ()  # settings without a size that the reader uses
    aliases: Mapping[str, str] = field(default_factory=dict)  # other names of these settings
    harmless: str = ""  # a pattern for names that look like parallelism and change no groups
    left_out: Mapping[str, str] = field(default_factory=dict)  # effects that a mesh does not show, for a warning
    refused: Mapping[str, str] = field(default_factory=dict)  # reasons and remedies, if no mesh can be read
    order: str = ""  # of the axes, slowest first, if programs of others have the same flags in another order
    style: str = "--{}"  # how the framework's users write a name
    underscores: bool = False  # whether they write it with underscores

    def written(self, name: str) -> str:
        """Return a name as the framework's users write it."""
        return self.style.format(name.replace("-", "_") if self.underscores else name)

    @property
    def names(self) -> str:
        """The settings with a size, for a message."""
        return ", ".join(map(self.written, self.sizes))

    def select(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings about parallelism under their first names: sizes as int, switches as bool."""
        selected: dict[str, Any] = {}
        for name, value in settings.items():
            plain = self.aliases.get(dashed(str(name)), dashed(str(name)))
            if plain in self.sizes or plain == WORLD_SETTING:
                if value is not None and str(value).lower() not in ("none", "null"):
                    selected[plain] = as_size(self.written(plain), value)
            elif plain in self.switches or plain == UNNAMED:
                selected[plain] = is_on(value)
            elif plain in self.left_out or plain in self.refused or _ABOUT_PARALLELISM.search(plain):
                selected[plain] = value
        return selected

    def select_fixed(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings like `select`, without sizes of 0 or less, which stand for sizes that are computed."""
        selected = self.select(settings)
        return {name: value for name, value in selected.items() if name not in self.sizes or value > 0}

    def axis_sizes(self, selected: Mapping[str, Any]) -> dict[str, int]:
        """Return the size by axis, for the axes that have a setting."""
        return {axis: selected[name] for name, axis in self.sizes.items() if name in selected}

    def require_some(self, selected: Mapping[str, Any], text: str = "", others: Iterable[str] = ()) -> None:
        """Raise a `ParseError` that lists the known settings, unless one of them was given."""
        if any(name in selected for name in (*self.sizes, *others)):
            return
        kind = "flag" if self.style.startswith("--") else "setting"
        raise ParseError(f"no {self.framework} {kind} found", hint=f"use one of {self.names}", text=text)

    def check(self, selected: Mapping[str, Any]) -> None:
        """Raise a `MeshError` for a setting with which no mesh can be read."""
        for name, reason in self.refused.items():
            if name in selected and is_on(selected[name]):
                raise MeshError(f"{self.framework}: {self.written(name)} {reason}")

    def omissions(self, selected: Mapping[str, Any]) -> tuple[str, ...]:
        """Return one sentence for each given setting that changes, or may change, groups that a mesh does not show."""
        notes = []
        if selected.get(UNNAMED):
            notes.append(
                f"{self.framework}: the text does not name its framework, and these settings were read as those of "
                f"{self.framework}, whose order is {self.order}; pass framework={self.framework.lower()!r} if that is "
                f"right"
            )
        for name, value in selected.items():
            if name in self.sizes or name in (*self.switches, WORLD_SETTING, UNNAMED):
                continue
            off = value != "" and is_off(value)
            if off or (name not in self.left_out and self.harmless and re.search(self.harmless, name)):
                continue
            # A flag with several values, such as the sizes of levels, was split after the first one.
            bare = isinstance(value, bool) or name.endswith("sizes")
            setting = self.written(name) if bare else f"{self.written(name)} {value}".strip()
            if name in self.left_out:
                notes.append(f"{self.framework}: {setting} {self.left_out[name]}")
            elif name not in self.refused:
                notes.append(
                    f"{self.framework}: the parallelism setting {short(setting)[1:-1]} is unknown to meshlab and was "
                    f"ignored; check whether it changes the groups"
                )
        return tuple(notes)
