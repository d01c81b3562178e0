"""Logs in the layouts of nccl-tests, with invented times in the tool's own format strings."""

from __future__ import annotations

from dataclasses import dataclass, field

FACTORS = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "alltoall": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
    "sendrecv": lambda n: 1.0,
}
PER_RANK = {"all_gather", "reduce_scatter", "alltoall"}
OPS = {"all_reduce": "sum", "reduce_scatter": "sum", "reduce": "sum", "sendrecv": "sum"}
ROOTED = {"broadcast", "reduce"}
# The columns between the type and the time, in the layout before 2.13.
OLD_COLUMNS = {
    "all_reduce": ("redop",),
    "reduce_scatter": ("redop",),
    "reduce": ("redop", "root"),
    "broadcast": ("root",),
    "all_gather": (),
    "sendrecv": (),
    "alltoall": ("redop",),
}


def fit(value: float, width: int) -> str:
    """Format a number with as many decimals as fit, at most two."""
    return next(text for digits in (2, 1, 0) if len(text := f"{value:.{digits}f}") <= width or digits == 0)


def five_digits(value: float) -> str:
    """Format a time like versions until 2.16."""
    return f"{value:.0f}" if value >= 1e4 else f"{value:.1f}" if value >= 100 else f"{value:.2f}"


@dataclass(frozen=True)
class LogMaker:
    """Writes a log with the given properties."""

    layout: str = "2.13"
    collective: str = "all_reduce"
    n_ranks: int = 8
    sizes: tuple[int, ...] = tuple(2**power for power in range(8, 27, 3))
    checked: bool = True
    wrong: dict[int, int] = field(default_factory=dict)
    latency_us: float = 21.3
    bandwidth_gbs: float = 171.0
    footer: bool = True

    def time(self, row: int, in_place: bool) -> float:
        """Return an invented time in µs, uneven so that every printed digit matters."""
        return (self.latency_us + self.sizes[row] / self.bandwidth_gbs / 1e3) * (1 + 0.0137 * row + 0.021 * in_place)

    def half(self, row: int, in_place: bool) -> str:
        time, size = self.time(row, in_place), self.sizes[row]
        algbw = size / time / 1e3
        busbw = algbw * FACTORS[self.collective](self.n_ranks)
        checks = self.checked and not (in_place and self.collective in ("alltoall", "sendrecv"))
        if self.layout in ("2.0", "2.10"):
            last = f"{5e-07:5.0e}" if checks else f"{'N/A':>5}"
            return f"  {five_digits(time):>7}  {algbw:6.2f}  {busbw:6.2f}  {last}"
        wrong = self.wrong.get(row, 0)
        if self.layout == "2.13":
            last = f"{wrong:5g}" if checks else f"{'N/A':>5}"
            return f"  {five_digits(time):>7}  {algbw:6.2f}  {busbw:6.2f}  {last}"
        last = f"  {wrong:6g}" if checks else "    N/A"
        text = f"  {fit(time, 7):>7}  {fit(algbw, 6):>6}  {fit(busbw, 6):>6}{last}"
        if self.layout == "2.19":
            text += f"  {fit(time * 0.97, 7):>7}  {fit(time * 1.05, 7):>7}  {fit(time * 1.04, 7):>7}  {1.41:7.2f}"
        return text

    def row(self, row: int) -> str:
        size = self.sizes[row]
        count = size // 4 // (self.n_ranks if self.collective in PER_RANK else 1)
        op, root = OPS.get(self.collective, "none"), 0 if self.collective in ROOTED else -1
        width = 6 if self.layout == "2.0" else 8
        text = f"{size:12d}  {count:12d}  {'float':>{width}}"
        if self.layout in ("2.0", "2.10"):
            cells = {"redop": "" if self.collective == "alltoall" else op, "root": root}
            text += "".join(f"  {cells[name]:>6}" for name in OLD_COLUMNS[self.collective])
        else:
            text += f"  {op:>6}  {root:6d}"
        stamp = f"{'2026-07-10 12:00:01':>21}" if self.layout == "2.19" else ""
        return text + self.half(row, False) + self.half(row, True) + stamp

    def header(self) -> list[str]:
        old = self.layout in ("2.0", "2.10")
        width = 6 if self.layout == "2.0" else 8
        left = f"# {'size':>10}  {'count':>12}  {'type':>{width}}"
        names = OLD_COLUMNS[self.collective] if old else ("redop", "root")
        left += "".join(f"  {name:>6}" for name in names)
        if old:
            half = f"  {'time':>7}  {'algbw':>6}  {'busbw':>6}  {'error':>5}"
        elif self.layout == "2.13":
            half = f"  {'time':>7}  {'algbw':>6}  {'busbw':>6} {'#wrong':>6}"
        else:
            half = f"  {'time':>7}  {'algbw':>6}  {'busbw':>6}  {'#wrong':>6}"
        if self.layout == "2.19":
            half += f"  {'i_min':>7}  {'i_max':>7}  {'i_p99':>7}  {'i_cv%':>7}"
        stamp = f" {'timestamp':>19}" if self.layout == "2.19" else ""
        return [
            f"#{'':60}out-of-place                       in-place",
            left + half + half + stamp,
            "#        (B)    (elements)",
        ]

    def preamble(self) -> list[str]:
        lines = []
        if self.layout in ("2.17", "2.19"):
            version = {"2.17": "2.17.8", "2.19": "2.19.6"}[self.layout]
            lines += [
                f"# nccl-tests version {version} nccl-headers=22902 nccl-library=22902",
                f"# Collective test starting: {self.collective}_perf",
            ]
        settings = (
            f"# nThread 1 nGpus 1 minBytes {self.sizes[0]} maxBytes {self.sizes[-1]} step: 8(factor) "
            "warmup iters: 5 iters: 20 "
        )
        old = self.layout in ("2.0", "2.10")
        settings += f"validation: {self.checked:d} " if old else f"agg iters: 1 validation: {self.checked:d} graph: 0"
        if self.layout == "2.19":
            settings += " unalign: 0"
        lines += [settings, "#", "# Using devices"]
        for rank in range(self.n_ranks):
            group, bus_id = ("", f"0x{rank:02x}") if old else ("Group  0 ", f"0000:{rank:02x}:00")
            indent = "   " if old else "  "
            lines.append(
                f"#{indent}Rank {rank:2d} {group}Pid {1000 + rank:6d} on {'node00':>10} device {rank:2d} "
                f"[{bus_id}] NVIDIA X1"
            )
        return [*lines, "#"]

    def average(self) -> float:
        values = [
            self.sizes[row] / self.time(row, in_place) / 1e3 * FACTORS[self.collective](self.n_ranks)
            for row in range(len(self.sizes))
            for in_place in (False, True)
        ]
        return sum(values) / len(values)

    def end(self) -> list[str]:
        bad = sum(2 for wrong in self.wrong.values() if wrong)
        lines = [
            f"# Out of bounds values : {bad} {'FAILED' if bad else 'OK'}",
            f"# Avg bus bandwidth    : {self.average():g} ",
            "#",
        ]
        if self.layout in ("2.17", "2.19"):
            lines.append(f"# Collective test concluded: {self.collective}_perf")
        return lines

    def lines(self) -> list[str]:
        rows = [self.row(row) for row in range(len(self.sizes))]
        return [*self.preamble(), *self.header(), *rows, *(self.end() if self.footer else [])]

    def text(self) -> str:
        return "\n".join(self.lines()) + "\n"
