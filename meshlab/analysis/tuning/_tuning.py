"""Tunings: the fastest option of each message size, and the forms in which a program can use them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from meshlab.analysis.tuning._choice import choose, mean_gain, size_ranges
from meshlab.analysis.tuning._environment import TunedEnvironment, tuned_environment
from meshlab.analysis.tuning._files import read_tuning, write_tuning
from meshlab.analysis.tuning._plugin import TunerConfig, tuner_config
from meshlab.analysis.tuning._python import python_source
from meshlab.base import _markup as markup
from meshlab.base._errors import BenchError, CommunicatorError, did_you_mean
from meshlab.base._forwarding import implementation
from meshlab.base._units import SEPARATOR, THIN, format_number, format_size, parse_size
from meshlab.comm._backend import Buffers, CallChoice, CallConfig
from meshlab.frames._schema import RESULTS, conform, plain_value
from meshlab.frames._statistics import bandwidth
from meshlab.frames._table import align_decimals
from meshlab.frames._trials import CASE, OPTION, as_trials, is_default
from meshlab.mesh._mesh import DeviceMesh, as_mesh
from meshlab.runs._redact import Redactor, redactor_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from meshlab.comm._communicator import Communicator

_KEYS = ("collective", "op", "dtype", "in_place", "mode")
"""The columns that distinguish the lines of a tuning. The label of a line names those that differ."""

_MOST_RANGES = 40
"""Rows of the table in the text form."""


@dataclass(frozen=True, repr=False, eq=False)
class Tuning:
    """The fastest option of each message size on one machine, and the forms in which a program can use it.

    `meshlab.tune` creates one. The default of the library stays unless an option was clearly faster, and clearly faster
    again on new ranks.

    Parameters
    ----------
    trials : pandas.DataFrame
        Everything that was measured, with the columns of `meshlab.frames.TRIALS`.
    settings : mapping of str to mapping of str to str, default {}
        The environment variables of each value in the column ``setting``.
    mesh : DeviceMesh or str
        The mesh.
    axis : str
        The axis whose groups were measured.
    system : mapping of str to str, default {}
        The measured system: ``where`` (a title such as "2 × H200 · NCCL 2.32.3"), ``backend``, ``library`` (name and
        version), ``device`` (product of the GPUs), ``hosts`` (names, separated by commas), ``beside`` (the matrix
        product beside the calls), and ``note``.

    Raises
    ------
    BenchError
        If the axis is not one of the mesh, or the trials are of groups of another size.
        If a trial names a setting that is not in `settings`.

    Examples
    --------
    >>> import meshlab as ml
    >>> tuning = ml.example("tuning")
    >>> tuning.collectives[:3]
    ('all_reduce', 'all_gather', 'reduce_scatter')
    >>> bool(tuning.mean_gains(largest="16M")["all_gather"] > 0.1)
    True
    """

    trials: pd.DataFrame
    mesh: DeviceMesh
    axis: str
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    system: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        mesh, trials = as_mesh(self.mesh), as_trials(self.trials)
        size = mesh[self.axis].size
        others = sorted({int(n) for n in trials["n_ranks"].dropna()} - {size})
        if others:
            raise BenchError(
                f"the trials are of groups of {others[0]} ranks, but the groups of {self.axis} in {mesh} have {size}",
                hint="pass the mesh and the axis that were measured",
            )
        unknown = sorted(set(trials["setting"].dropna()) - set(self.settings))
        if unknown:
            raise BenchError(
                f"the trials name the setting {unknown[0]!r}, which is not in settings", hint="pass its variables"
            )
        for name, value in (("mesh", mesh), ("trials", trials)):
            object.__setattr__(self, name, value)
        settings = {name: MappingProxyType(dict(values)) for name, values in self.settings.items()}
        object.__setattr__(self, "settings", MappingProxyType(settings))
        object.__setattr__(self, "system", MappingProxyType({k: str(v) for k, v in self.system.items()}))

    def __reduce__(self) -> tuple[Any, ...]:  # views of mappings cannot be pickled
        settings = {name: dict(values) for name, values in self.settings.items()}
        return Tuning, (self.trials, self.mesh, self.axis, settings, dict(self.system))

    # -- choices and times ---------------------------------------------------------------------------------------------

    def frame(self) -> pd.DataFrame:
        """Return the chosen option of each collective and size.

        Returns
        -------
        pandas.DataFrame
            The columns of `meshlab.frames.TUNED`, such as ``size_bytes``, ``option``, ``time_us`` with its interval,
            ``default_us`` with its interval, ``gain`` (1 - tuned / default) and ``is_confirmed``. Rows that keep the
            default have a gain of 0. Calls whose default was not measured are omitted.

        Examples
        --------
        >>> import meshlab as ml
        >>> frame = ml.example("tuning").frame()
        >>> bool((frame["gain"] >= 0).all())
        True
        """
        return self._tuned.copy()

    @cached_property
    def _tuned(self) -> pd.DataFrame:
        tuned = choose(self.trials)
        tuned.attrs = {name: self.system[name] for name in ("where", "library", "note") if self.system.get(name)}
        return tuned

    @cached_property
    def lines(self) -> tuple[tuple[str, pd.DataFrame], ...]:
        """The rows of `frame` by collective, each with a label. It names further properties if they differ."""
        tuned = self._tuned
        varying = [name for name in _KEYS[1:] if tuned.groupby("collective", sort=False)[name].nunique().gt(1).any()]
        lines = []
        for values, rows in tuned.groupby(["collective", *varying], dropna=False, sort=False):
            words = [str(values[0])]
            for name, value in zip(varying, values[1:], strict=True):
                value = plain_value(value)
                if name == "in_place":
                    words.append("placement unknown" if value is None else "in place" if value else "out of place")
                elif value is not None:
                    words.append(str(value))
            lines.append((", ".join(words), rows.reset_index(drop=True)))
        return tuple(lines)

    @property
    def results(self) -> pd.DataFrame:
        """The times of the default as a results frame, for plots, reports and comparisons with runs."""
        import pandas as pd

        tuned = self._tuned
        rows = tuned[[*CASE]].copy()
        for end in ("", "_lo", "_hi"):
            rows[f"time_us{end}"] = tuned[f"default_us{end}"]
        rows = rows.assign(
            source=self.system.get("backend") or None,
            grouping="together",
            buffers="plain",
            group=self.mesh[self.axis].names[0],
            status="ok",
            n_wrong=0 if self.trials.loc[is_default(self.trials), "n_wrong"].notna().all() else None,
            mesh_fingerprint=self.mesh.fingerprint,
        )
        results = conform(pd.DataFrame(rows), RESULTS)
        columns = (results["size_bytes"], results["n_ranks"], results["time_us"])
        results["algbw_gbs"], results["busbw_gbs"] = bandwidth(results["collective"].tolist(), *columns)
        names = {"where": "where", "library": "library", "device": "gpu", "note": "note"}
        results.attrs = {attr: self.system[name] for name, attr in names.items() if self.system.get(name)}
        return results

    @property
    def collectives(self) -> tuple[str, ...]:
        """The tuned collectives."""
        return tuple(dict.fromkeys(self._tuned["collective"]))

    @property
    def library(self) -> str:
        """The name of the library, such as ``"NCCL"``."""
        return self.system.get("library", "").split(" ")[0] or "the library"

    @property
    def where(self) -> str:
        """The label of the measured system."""
        return self.system.get("where") or self.system.get("library", "")

    def mean_gains(self, smallest: str | int | None = None, largest: str | int | None = None) -> pd.Series[float]:
        """Return the gain of each collective as a geometric mean over the sizes.

        Parameters
        ----------
        smallest, largest : str or int, optional
            The range of sizes, such as ``largest="16M"``. By default all that were tuned.

        Returns
        -------
        pandas.Series
            1 - tuned time / time of the default, by the label of the collective.

        Raises
        ------
        BenchError
            If no size is in the range.

        Examples
        --------
        >>> import meshlab as ml
        >>> list(ml.example("tuning").mean_gains(largest="16M").index[:2])
        ['all_reduce', 'all_gather']
        """
        import pandas as pd

        first = 0 if smallest is None else parse_size(smallest)
        last = np.inf if largest is None else parse_size(largest)
        gains = {}
        for label, rows in self.lines:
            part = rows[rows["size_bytes"].between(first, last)]
            if len(part):
                gains[label] = mean_gain(part)
        if not gains:
            raise BenchError(f"no tuned size is between {smallest} and {largest}", hint=self._sizes_hint())
        return pd.Series(gains, name="gain", dtype="float64")

    def exposed_share(self, collective: str | None = None) -> float:
        """Return the share of the communication that stays exposed beside the product of ``tune(beside=…)``.

        Parameters
        ----------
        collective : str, optional
            One of the tuned collectives. By default all.

        Returns
        -------
        float
            The time that the chosen calls add to the product, divided by their time alone, over all sizes. More than 1
            if they slow the product down by more than they would take after it. For `exposed_share` of `search`.

        Raises
        ------
        BenchError
            If the tuning has no product, or not the collective.
        """
        rows = self._tuned if collective is None else self._tuned[self._tuned["collective"] == collective]
        rows = rows[rows["exposed_us"].notna() & rows["alone_us"].gt(0)]
        if rows.empty:
            raise BenchError(
                f"the tuning has no product beside {collective or 'its calls'}",
                hint="pass beside= to tune, such as beside=(8192, 8192, 8192)",
            )
        return float(rows["exposed_us"].sum() / rows["alone_us"].sum())

    @property
    def verdicts(self) -> tuple[str, ...]:
        """One sentence per collective: how much less time its tuned calls take than those of the default."""
        return tuple(self._verdict(label, rows) for label, rows in self.lines)

    def _verdict(self, label: str, rows: pd.DataFrame) -> str:
        n, faster = len(rows), int(rows["is_confirmed"].sum())
        sizes = f"{format_size(rows['size_bytes'].min())} to {format_size(rows['size_bytes'].max())}" if n > 1 else ""
        sizes = sizes or format_size(rows["size_bytes"].iloc[0])
        if faster:
            at = "" if faster == n == 1 else f", faster at {faster} of {n} sizes"
            pair = " with its product" if self.system.get("beside") else ""
            gain = f"{100 * mean_gain(rows):.0f}{THIN}% less time"
            text = f"{label}{pair}: {gain} than {self.library}'s default over {sizes}{at}"
        else:
            text = f"{label}: no option is confirmed to be faster than {self.library}'s default over {sizes}"
        for verdict, words in (
            ("not confirmed", "not on new ranks"),
            ("not repeated", "not measured again on new ranks"),
        ):
            count = int(rows["verdict"].eq(verdict).sum())
            if count:
                verb = "was" if count == 1 else "were"
                text += f"; {count} {'more ' * bool(faster)}{verb} faster in the search, but {words}"
        return text

    def __repr__(self) -> str:
        gains = ", ".join(f"{label} {100 * mean_gain(rows):.0f} %" for label, rows in self.lines)
        title = f"<Tuning of {self.axis} in {self.mesh} on {self.where or 'an unknown system'}: {gains or 'no results'}"
        return f"{title}; next: .frame(), .plot(), .save(path)>"

    def __str__(self) -> str:
        lines = [*self.heading(), *self.verdicts, ""]
        header = ["collective", "sizes", "option", "time less than the default"]
        table = [header]
        for label, rows in self.lines:
            table += [[label, *cells] for cells in _range_cells(rows)]
        more = len(table) - 1 - _MOST_RANGES
        table = table[: _MOST_RANGES + 1]
        widths = [max(len(row[column]) for row in table) for column in range(3)]
        for row in table:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
            lines.append("  ".join([*cells, row[3]]).rstrip())
        return "\n".join([*lines, *([f"and {more} more rows"] if more > 0 else [])])

    def heading(self) -> list[str]:
        """Return a title with axis, system, mode and element type, and the note of the system if there is one."""
        first = self._tuned.iloc[0] if len(self._tuned) else None
        parts = [f"{self.axis} (groups of {self.mesh[self.axis].size})", self.where]
        if self.system.get("beside"):
            parts.append(f"beside a product of {self.system['beside']}")
        if first is not None:
            shared = [plain_value(first[name]) for name in ("mode", "dtype") if self._tuned[name].nunique() == 1]
            parts += [str(value) for value in shared if value is not None]
            if self._tuned["in_place"].nunique() == 1:
                parts.append("in place" if bool(first["in_place"]) else "out of place")
        note = self.system.get("note", "")
        return [SEPARATOR.join(part for part in parts if part), *([note] if note else [])]

    def _figure_html(self) -> str:
        return implementation(Tuning._figure_html)(self)

    def _repr_html_(self) -> str:
        head, *notes = self.heading()
        sentences = [f"<div><b>{markup.escape(sentence)}</b></div>" for sentence in self.verdicts]
        sentences += [f'<div class="ml-sub">{markup.escape(note)}</div>' for note in notes]
        header, rows = self.table()
        figure = self._figure_html() if len(self._tuned) else ""
        table = markup.table(header, rows, right=range(3, len(header) - 1)) if rows else "no results"
        return markup.card(f"Tuning of {', '.join(self.collectives)}", head, *sentences, figure, table)

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return the frame as texts: a header, and one row per collective and size.

        Returns
        -------
        header : list of str
        rows : list of list of str
        """
        header = ["collective", "size", "option", "time µs", f"{self.library}'s default µs", "less time", "verdict"]
        rows = []
        for label, tuned in self.lines:
            times, defaults = (align_decimals([format_number(x) for x in tuned[n]]) for n in ("time_us", "default_us"))
            for row, time, default in zip(tuned.to_dict("records"), times, defaults, strict=True):
                gain = f"{100 * row['gain']:.1f}{THIN}%" if row["is_confirmed"] else ""
                size = format_size(row["size_bytes"])
                rows.append([label, size, row["option"], time.strip(), default.strip(), gain, _verdict_word(row)])
        return header, rows

    def plot(self, *, ax: Axes | None = None) -> Axes:
        """Draw the tuned and the default time over the message size, and the gain below.

        See `meshlab.plots.tuning`.
        """
        return implementation(Tuning.plot)(self, ax=ax)

    # -- forms for programs --------------------------------------------------------------------------------------------

    def choices(self) -> tuple[CallChoice, ...]:
        """Return the choices for `Communicator.chosen_by_size`, in ascending order of the sizes of each collective.

        A measured option applies half way to the next measured size on a logarithmic scale, and at most to twice or
        half its own size. Sizes outside the tuned range keep the default, and so do gaps between distant sizes.

        Returns
        -------
        tuple of CallChoice

        Raises
        ------
        BenchError
            If a collective was tuned with several element types, operations, modes or placements.
            If all faster options are environment variables, which a call cannot set. If only some are, their sizes keep
            the default.

        Examples
        --------
        >>> import meshlab as ml
        >>> choices = ml.example("tuning").choices()
        >>> choices[0].collective, sorted({choice.buffers for choice in choices})
        ('all_reduce', ['plain', 'symmetric'])
        """
        self._check_one_line_each()
        self._check_no_settings()
        choices: list[CallChoice] = []
        for _, tuned in self.lines:
            name, ranges = str(tuned["collective"].iloc[0]), size_ranges(tuned)
            if ranges[0].min_bytes > 1:
                choices.append(CallChoice(name, ranges[0].min_bytes - 1))
            choices += [CallChoice(name, part.max_bytes, *_call_of(part.row)) for part in ranges]
            choices.append(CallChoice(name, None))
        return tuple(choices)

    def apply(self, comm: Communicator) -> Communicator:
        """Return a view of a communicator that chooses the options of each call by its size.

        Its ``empty()`` allocates symmetric memory if an option needs it. See `choices` for sizes between the measured
        ones. All ranks of the group must call this.

        Parameters
        ----------
        comm : Communicator
            A communicator of as many ranks as the tuned groups.

        Returns
        -------
        Communicator
            The view. Closing it leaves `comm` open.

        Raises
        ------
        CommunicatorError
            If the communicator has another number of ranks, or its backend is not that of the tuning.
        BenchError
            If all faster options are environment variables, see `to_env`.

        Warns
        -----
        UserWarning
            If the GPUs or the version of the library differ from the tuned ones.
            If some sizes keep the default, because their options are environment variables.
        """
        n_ranks = self.mesh[self.axis].size
        if comm.size != n_ranks:
            raise CommunicatorError(
                f"the tuning is for groups of {n_ranks} ranks, but the communicator {comm.name} has {comm.size}; tune "
                "groups of this size",
                group=comm.name,
            )
        capabilities = comm.capabilities()
        backend = self.system.get("backend", "")
        if backend and capabilities.backend != backend:
            raise CommunicatorError(
                f"the tuning was made on {backend}, but the communicator {comm.name} uses {capabilities.backend}; tune "
                "on the same backend",
                group=comm.name,
            )
        choices = self.choices()
        for difference in self._differences(capabilities.library, capabilities.facts.get("device", "")):
            warnings.warn(f"{difference}, so other options may be faster; tune again", stacklevel=2)
        n_settings = int(self._tuned["setting"].notna().sum())
        if n_settings:
            text = f"{n_settings} sizes keep the default, because their faster options are environment variables"
            warnings.warn(f"{text}; see Tuning.to_env()", stacklevel=2)
        return comm.chosen_by_size(choices)

    def _differences(self, library: str, device: str) -> list[str]:
        """Compare the tuned system with the current one."""
        pairs = (("library", library), ("device", device))
        return [
            f"the tuning was made with {self.system[name]}, not with {current}"
            for name, current in pairs
            if current and self.system.get(name) and self.system[name] != current
        ]

    def option_for(self, collective: str, size_bytes: str | int) -> str:
        """Return the option of a message size in a few words.

        Parameters
        ----------
        collective : str
            The collective.
        size_bytes : str or int
            The message size, S of nccl-tests.

        Returns
        -------
        str
            ``"default"`` for sizes outside the tuned range.

        Raises
        ------
        BenchError
            If the collective was not tuned.

        Examples
        --------
        >>> import meshlab as ml
        >>> tuning = ml.example("tuning")
        >>> tuning.option_for("all_gather", "4M")[:16], tuning.option_for("all_gather", "1T")
        ('symmetric window', 'default')
        """
        self._check_one_line_each()
        size = parse_size(size_bytes)
        if collective not in self.collectives:
            raise BenchError(
                f"{collective} was not tuned{did_you_mean(collective, self.collectives)}",
                hint=f"choose one of {', '.join(self.collectives)}",
            )
        tuned = next(rows for _, rows in self.lines if rows["collective"].iloc[0] == collective)
        for part in size_ranges(tuned):
            if part.min_bytes <= size <= part.max_bytes and part.row is not None:
                return str(part.row["option"])
        return "default"

    def to_env(self) -> TunedEnvironment:
        """Return the environment variables that suit all sizes best, and what they lose against a choice per size.

        Variables apply to all calls of a process, so only options that were measured at every size count, and buffers
        cannot be chosen.

        Returns
        -------
        TunedEnvironment
            ``variables``, ``losses`` per collective, and ``str()`` for a shell.

        Examples
        --------
        >>> import meshlab as ml
        >>> ml.example("tuning").to_env().losses[0].loss > 0
        True
        """
        return tuned_environment(self._lines_with_rows(), self.trials, self.settings)

    def to_tuner_config(self) -> TunerConfig:
        """Return the part of the tuning that NCCL's example tuner plugin can apply, as its CSV file.

        A tuner sets the algorithm, the protocol and the number of channels of calls on ordinary buffers. NCCL handles
        calls on symmetric windows before it calls the tuner, so that part of the gain is lost; `TunerConfig.gains`
        has both. The plugin is the folder plugins/tuner/example of NCCL's repository. It gives calls without a line
        one channel, so all sizes of a tuned collective have a line, and sizes outside the tuned range use the nearest.

        Returns
        -------
        TunerConfig
            ``lines``, ``gains``, ``notes``, ``save(path)``, and ``str()`` for the text.

        Raises
        ------
        BenchError
            If the tuning is not of NCCL.

        Examples
        --------
        >>> import meshlab as ml
        >>> str(ml.example("tuning").to_tuner_config()).startswith("# meshlab: tp (2 ranks) on 2 × H200")
        True
        """
        self._check_nccl("a tuner plugin")
        hosts = {name for name in self.system.get("hosts", "").replace(",", " ").split() if name}
        n_nodes = 1 if len(hosts) == 1 else -1
        title = f"meshlab: {self.axis} ({self.mesh[self.axis].size} ranks) on {self.where}"
        return tuner_config(self._lines_with_rows(), self.trials, n_nodes=n_nodes, title=title)

    def to_python(self) -> str:
        """Return a Python module for nccl4py that applies the tuning: windows, and a configuration for each call.

        The module does not need meshlab. Save it as a file, and change it as you like.

        Returns
        -------
        str
            The source.

        Raises
        ------
        BenchError
            If the tuning is not of NCCL, or all faster options are environment variables.

        Examples
        --------
        >>> import meshlab as ml
        >>> source = ml.example("tuning").to_python()
        >>> "class Tuned" in source and compile(source, "tuned.py", "exec") is not None
        True
        """
        self._check_nccl("nccl4py")
        self._check_one_line_each()
        self._check_no_settings()
        verdicts = [verdict.replace(THIN, " ") for verdict in self.verdicts]
        return python_source(self._lines_with_rows(), where=self.where, verdicts=verdicts)

    # -- files ---------------------------------------------------------------------------------------------------------

    def save(self, path: str | Path, *, redact: bool = False) -> Path:
        """Write the tuning with all its trials to one JSON file, completely or not at all.

        Parameters
        ----------
        path : str or pathlib.Path
            The file.
        redact : bool, default False
            If True, write hashes instead of names, addresses and secrets, see `RunData.redacted`.

        Returns
        -------
        pathlib.Path
            The file.

        Raises
        ------
        BenchError
            If the file cannot be written.

        Examples
        --------
        >>> import tempfile
        >>> import meshlab as ml
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = ml.example("tuning").save(f"{folder}/tuning.json")
        ...     ml.analysis.Tuning.load(path).axis
        'tp'
        """
        tuning = self.redacted() if redact else self
        names = ("trials", "settings", "mesh", "axis", "system")
        return write_tuning(path, {name: getattr(tuning, name) for name in names})

    @staticmethod
    def load(path: str | Path) -> Tuning:
        """Read a tuning that `save` wrote. Nothing in the file is executed.

        Parameters
        ----------
        path : str or pathlib.Path
            The file.

        Returns
        -------
        Tuning

        Raises
        ------
        ParseError
            If the file cannot be read, is damaged, or is of a newer version.
        """
        return Tuning(**read_tuning(path))

    def redacted(self, redactor: Redactor | None = None) -> Tuning:
        """Return a copy with hashes instead of names, addresses and secrets. See `RunData.redacted`.

        Parameters
        ----------
        redactor : Redactor, optional
            The redactor of a document that contains this tuning. By default one that has learned this tuning only.
        """
        if redactor is None:
            redactor = redactor_of(None, self, mesh=self.mesh)
        mesh, renamed = redactor.mesh(self.mesh)
        # The names of the settings connect them with the trials, so both change in the same way.
        renamed |= {name: redactor.text(name) for name in self.settings}
        trials = redactor.frame(self.trials, renamed)
        settings = {renamed[name]: redactor.anything(values) for name, values in self.settings.items()}
        axis, system = renamed.get(self.axis, self.axis), redactor.anything(self.system)
        return replace(self, trials=trials, mesh=mesh, axis=axis, settings=settings, system=system)

    def without_dropped(self) -> Tuning:
        """Return a copy without the options that the search dropped early, which takes less space in a file.

        The chosen options and their times are the same, but `to_env` and `to_tuner_config` have fewer options to choose
        from.
        """
        rows = self.trials["status"].ne("dropped").fillna(value=True) | is_default(self.trials)
        return replace(self, trials=self.trials[rows])

    # -- checks --------------------------------------------------------------------------------------------------------

    def _lines_with_rows(self) -> tuple[tuple[str, pd.DataFrame], ...]:
        if not self.lines:
            raise BenchError("the tuning has no results, because the default was not measured", hint="tune again")
        return self.lines

    @property
    def is_on_nccl(self) -> bool:
        """True if the tuning was made on NCCL, which has a tuner plugin and choices per call."""
        return (self.system.get("backend") or "nccl") == "nccl"

    def _check_nccl(self, what: str) -> None:
        if not self.is_on_nccl:
            backend = self.system["backend"]
            raise BenchError(
                f"{what} is for NCCL, but this tuning was made on {backend}", hint="use to_env() for its variables"
            )

    def _check_one_line_each(self) -> None:
        twice = [name for name in self.collectives if sum(label.split(",")[0] == name for label, _ in self.lines) > 1]
        if twice:
            labels = "; ".join(label for label, _ in self.lines if label.split(",")[0] == twice[0])
            raise BenchError(
                f"{twice[0]} was tuned several times ({labels}), but a call is chosen by its size only",
                hint="tune one element type, operation, mode and placement at a time",
            )

    def _check_no_settings(self) -> None:
        needs = self._tuned["setting"].notna()
        if needs.any() and needs[self._tuned["is_confirmed"]].all():
            names = self._tuned["setting"].dropna().unique()
            raise BenchError(
                f"the tuning chose environment variables ({', '.join(names[:3])}), which a library reads at its start",
                hint="start the ranks with ml.launch(n, env=tuning.to_env().variables)",
            )

    def _sizes_hint(self) -> str:
        sizes = self._tuned["size_bytes"]
        return f"the tuned sizes are {format_size(sizes.min())} to {format_size(sizes.max())}" if len(sizes) else ""


def _call_of(row: Any) -> tuple[CallConfig, Buffers]:
    """Return the configuration and the buffers of an option. None and options of the environment are the default."""
    if row is None or plain_value(row["setting"]) is not None:
        return CallConfig(), "plain"
    values = {name: plain_value(row[name]) for name in OPTION if name not in ("setting", "buffers")}
    numbers = {name: int(values[name]) for name in ("min_ctas", "max_ctas") if values[name] is not None}
    buffers: Buffers = row["buffers"]
    return CallConfig(**{**values, **numbers}), buffers


def _verdict_word(row: Mapping[Any, Any]) -> str:
    """Return the verdict of a row for a table, with the option that was not confirmed."""
    if row["verdict"] in ("not confirmed", "not repeated"):
        return f"{row['verdict']}: {row['candidate']}"
    return "confirmed" if row["verdict"] == "faster" else ""


def _range_cells(rows: pd.DataFrame) -> Sequence[list[str]]:
    """Return sizes, option and gain of each range of sizes with one option."""
    cells = []
    for part in size_ranges(rows):
        if part.row is None:
            continue
        gains = 100 * rows.loc[rows["size_bytes"].isin(part.sizes), "gain"].to_numpy(float)
        gains = gains.clip(max=99)  # no call takes no time, as a rounded 100 % would mean
        first, last = format_size(part.sizes[0]), format_size(part.sizes[-1])
        low, high = f"{gains.min():.0f}", f"{gains.max():.0f}"
        span = first if first == last else f"{first} to {last}"
        is_faster = bool(part.row["is_confirmed"])
        cells.append(
            [span, str(part.row["option"]), f"{low if low == high else f'{low} to {high}'}{THIN}%" * is_faster]
        )
    return cells
