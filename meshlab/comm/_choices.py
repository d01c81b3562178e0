"""Choices of the configuration of a call, by collective and message size."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from meshlab.base._errors import CommunicatorError
from meshlab.comm._backend import BUFFERS, CallChoice, CallConfig
from meshlab.comm._catalog import Collective, find_collective
from meshlab.comm._validate import check_config


class SizeChoices:
    """Finds the configuration of a call among choices in any order, two of which must not be for the same calls."""

    def __init__(self, choices: Sequence[CallChoice]) -> None:
        ordered: dict[str, dict[float, CallChoice]] = {}
        for choice in choices:
            _check(choice)
            limit = math.inf if choice.max_bytes is None else choice.max_bytes
            of_collective = ordered.setdefault(choice.collective, {})
            if limit in of_collective:
                size = "all larger sizes" if choice.max_bytes is None else f"sizes up to {choice.max_bytes:,} bytes"
                raise CommunicatorError(f"two choices are for {choice.collective} and {size}; omit one of them")
            of_collective[limit] = choice
        self.has_windows = any(choice.buffers == "symmetric" for choice in choices)
        self._by_collective = {
            name: (sorted(by_limit), [self._config(by_limit[limit]) for limit in sorted(by_limit)])
            for name, by_limit in ordered.items()
        }
        self.configs = {config for _, configs in self._by_collective.values() for config in configs}

    def _config(self, choice: CallChoice) -> CallConfig:
        # In windows, NCCL prefers its symmetric kernels. A choice that was measured without windows excludes them.
        config = choice.config
        if self.has_windows and choice.buffers != "symmetric" and config.algorithm is None and config.protocol is None:
            return replace(config, algorithm="^symk")
        return config

    def find(self, row: Collective, send: Any, out: Any, n_ranks: int) -> CallConfig | None:
        """Return the configuration of a call, or None without a choice for it."""
        limits, configs = self._by_collective.get(row.name, ((), ()))
        n_bytes = message_bytes(row, send, out, n_ranks) if limits else None
        if n_bytes is None:
            return None
        place = bisect_left(limits, n_bytes)
        return configs[place] if place < len(configs) else None


def message_bytes(row: Collective, send: Any, out: Any, n_ranks: int) -> int | None:
    """Return the size of a call, as in ``size_bytes``: the same on all ranks. None if it depends on the rank."""
    if not row.is_configurable:
        return None
    for kind, array in ((row.sends, send), (row.receives, out)):
        n_bytes = getattr(array, "nbytes", None)
        if n_bytes is not None:
            return row.size_bytes(n_bytes if kind == "count" else n_bytes // n_ranks, 1, n_ranks)
    return None


def _check(choice: CallChoice) -> None:
    if not isinstance(choice, CallChoice):
        raise CommunicatorError(f"a choice must be a CallChoice, not {type(choice).__name__}")
    row = find_collective(choice.collective)
    if not row.is_configurable:
        raise CommunicatorError(
            f"{row.name} has no configuration, because NCCL runs it as messages; omit its choice", collective=row.name
        )
    size = choice.max_bytes
    if size is not None and (isinstance(size, bool) or not hasattr(size, "__index__") or size < 1):
        raise CommunicatorError(f"max_bytes must be a positive number of bytes or None, not {size!r}")
    if choice.buffers not in BUFFERS:
        raise CommunicatorError(f"unknown buffers {choice.buffers!r}; choose one of {', '.join(BUFFERS)}")
    check_config(choice.config)
