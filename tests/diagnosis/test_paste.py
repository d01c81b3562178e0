"""Prefixes of launchers, log viewers and forums are removed, and what they name is kept."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshlab.base import _prefixes as prefixes
from meshlab.base._documents import LimitError
from meshlab.base._prefixes import find_prefix, may_have_prefix
from meshlab.diagnosis._paste import Paste, check_number
from meshlab.diagnosis._seen import Span, spans_of

LINE = "nodeA:12:34 [0] NCCL INFO Channel 00/02 :    0   1"

# What is put before a line, with the rank that it names.
PREFIXES: list[tuple[str, int | None]] = [
    ("[1,3]<stdout>:", 3),
    ("[1,14]<stderr>: ", 14),
    ("[prterun-login1-77@1,5]<stdout>: ", 5),
    ("[prterun-login1-77@1,5][nodeB:881]<stdout>: ", 5),
    ("[7]<stdout>:", 7),
    (" 3: ", 3),
    ("12: ", 12),
    ("[6] ", 6),
    ("[80746] ", None),
    ("(RayWorkerWrapper pid=4009, ip=10.0.0.3) ", None),
    ("(pid=812) ", None),
    ("(Worker_TP1 pid=12) ", None),
    ("(VllmWorker rank=3 pid=22) ", 3),
    ("(EngineCore_DP0 pid=1) ERROR 05-22 10:26:17 [multiproc_executor.py:870] ", None),
    ("[default0]:", None),
    ("[rank12]:", 12),
    ("[rank12]: ", 12),
    ("[trainer3|0]:", None),
    ("worker-pod-0: ", None),
    ("10.0.0.10: ", None),
    ("[pod/job-0/main] ", None),
    ("job-worker-1  | ", None),
    ("worker | ", None),
    ("2025-11-09 15:39:31.043 +08:00 ", None),
    ("2025-11-09T15:39:31.0434567Z ", None),
    ("2025-11-09T15:39:31.043-07:00 | ", None),
    ("[2025-03-18 21:25:51] ", None),
    ("2025-01-01 00:00:00,123 ", None),
    ("Nov  8 12:00:00 host5 slurmd[12]: ", None),
    ("Wed Jul  3 10:18:30 2024[1,3]<stdout>:", 3),
    ("rank0.log:", None),
    ("logs/job.out:12:", None),
    ("> ", None),
    ("    ", None),
    ("\t", None),
    ("│ ", None),
    ("```", None),
    ("\x1b[32m", None),
    ("[0m ", None),
]


@pytest.mark.parametrize(("prefix", "rank"), PREFIXES)
def test_a_prefix_is_removed_and_its_rank_is_kept(prefix: str, rank: int | None) -> None:
    line = Paste(prefix + LINE).line(1)
    assert (line.text, line.rank) == (LINE, rank)


# The number that grep writes after a file and the label of srun look the same.
NESTED = [item for item in PREFIXES if ".log:" not in item[0] and ".out:" not in item[0]]


@given(st.lists(st.sampled_from(NESTED), max_size=4))
def test_nested_prefixes_are_removed_and_the_innermost_rank_is_kept(prefixes: list[tuple[str, int | None]]) -> None:
    text = "".join(prefix for prefix, _ in prefixes) + LINE
    ranks = [rank for _, rank in prefixes if rank is not None]
    line = Paste(text).line(1)
    assert line.text == LINE
    assert line.rank == (ranks[-1] if ranks else None)


@given(
    st.sampled_from(["[1,2]<stdout>:", "[default0]:[rank2]: ", "2: ", "(VllmWorker rank=2 pid=22) "]),
    st.sampled_from(
        [
            "",
            "Traceback (most recent call last):",
            "[E515 18:36:47.341808597 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught",
            "RuntimeError: no",
            '  File "train.py", line 3, in <module>',
        ]
    ),
)
def test_text_that_nccl_did_not_print_keeps_the_rank_too(prefix: str, text: str) -> None:
    line = Paste(prefix + text).line(1)
    assert (line.text, line.rank) == (text, 2)


@pytest.mark.parametrize(
    "text",
    [
        "[7] finished collective #182, but didn't join collective #183 (count from 1)",
        "         - [0] Timeout at collective: ALLREDUCE, #315",
        "[ 1843.308145] NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus",
        "|   0  Tesla V100-SXM2...  Off  | 00000000:06:00.0 Off |                    0 |",
        "2: eth0: <BROADCAST,MULTICAST,UP> mtu 1500",
        "worker: Test NCCL failure common.cu:958 'internal error'",
        "RuntimeError: NCCL error",
        "                State: Down",
        "      524288         16384     float     sum      -1    62.66    8.37    7.32      0",
        "[E ProcessGroupNCCL.cpp:475] [Rank 15] Watchdog caught collective operation timeout",
        "#  Rank  0 Group  0 Pid   1189 on      nodeA device  0 [0x07] NVIDIA A100-SXM4-80GB",
        "(hangs here, both GPUs at 100%)",
    ],
)
def test_what_only_looks_like_a_prefix_stays(text: str) -> None:
    line = Paste(text).line(1)
    assert (line.text, line.rank) == (text, None)


def test_a_host_of_a_prefix_is_kept() -> None:
    paste = Paste(
        "(RayWorkerWrapper pid=1, ip=10.0.0.3) x\n10.0.0.4: y\n[pod/job-0/main] z\n"
        "Nov  8 12:00:00 host5 kernel: NVRM: w\n"
    )
    assert [line.host for line in paste.lines()] == ["10.0.0.3", "10.0.0.4", "job-0", "host5"]


def test_the_right_border_of_a_terminal_is_removed() -> None:
    assert Paste("│ nodeA:1:2 [0] NCCL INFO Using network IB      │").line(1).text.endswith("Using network IB")


def test_lines_are_numbered_also_with_windows_line_ends() -> None:
    paste = Paste("a\r\nb NCCL\r\n\r\nc NCCL\r\n")
    assert len(paste) == 4
    assert paste.numbers("NCCL") == [2, 4]


def test_searching_finds_the_same_lines_in_a_long_text() -> None:
    """A long text is first searched without its digits."""
    lines = ["alpha 1", "beta 0x7f", "gamma", "", "alpha beta"]
    for text in ("\n".join(lines), "\n".join([*lines, *["padding 17"] * 30_000, *lines])):
        paste = Paste(text)
        for literal in ("alpha", "beta", "0x7f", "7", "delta", "a 1", "17"):
            expected = [number for number, line in enumerate(text.split("\n"), 1) if literal in line]
            assert paste.numbers(literal) == expected


def test_each_reader_runs_once() -> None:
    calls: list[Paste] = []
    paste = Paste("text")
    reader = calls.append
    for _ in range(2):
        paste.once(reader)
    assert calls == [paste]


def test_a_pattern_is_searched_in_the_text_without_prefix() -> None:
    matches = Paste("[1,3]<stdout>:value 5\nvalue x").matches(re.compile(r"^value (\d)"), "value")
    assert [(line.number, match[1]) for line, match in matches] == [(1, "5")]


def test_lines_that_contain_a_pattern_are_found_with_their_prefixes_and_no_others_are_created() -> None:
    paste = Paste("\n".join(["GPU is lost", "[1,3]<stdout>:GPU 3: A", "GPU 4: B", "gpu 5: C"]))
    lines = paste.containing(re.compile(r"GPU \d+: "), "GPU ")
    assert [(line.number, line.text) for line in lines] == [(2, "GPU 3: A"), (3, "GPU 4: B")]
    assert sorted(paste._lines) == [2, 3]
    assert paste.containing(re.compile(r"GPU \d\d: "), "GPU ") == []


def test_links_that_a_forum_makes_are_undone() -> None:
    line = Paste(
        "nodeA:1:2 [0] [net_ib.cc:101](http://net_ib.cc:101/) NCCL WARN peer [10.0.0.3](http://10.0.0.3/)<5>"
    ).line(1)
    assert line.text == "nodeA:1:2 [0] net_ib.cc:101 NCCL WARN peer 10.0.0.3<5>"
    other = "see [the guide](https://docs.nvidia.com/nccl) and [0](x)"
    assert Paste(other).text == other


def test_a_long_line_that_repeats_itself_is_searched_once() -> None:
    """A JSON file may be one line of 10 MB, in which rules look for hundreds of strings."""
    entry = '{"size":%d,"out_of_place":{"time":%d.5}}'
    text = ",".join(entry % (size, size % 977) for size in range(20_000))
    paste = Paste(f"[{text[:400_000]}needle{text[400_000:]}]")
    assert paste._skeleton is not None
    assert len(paste._skeleton) < 20_000
    for literal in ("needle", text[399_990:400_000] + "needle", "needle" + text[400_000:400_050], entry[:8], "}},{"):
        assert paste.numbers(literal) == [1]
    assert paste.numbers("missing") == []


def test_a_string_is_found_across_the_pieces_of_a_long_line() -> None:
    for sign in "x{":
        text = sign * 300_000
        for at in (0, 255, 256, 257, 4095, 4096, 4097, 8192, 150_000, 300_000):
            assert Paste(f"{text[:at]}the needle{text[at:]}").numbers("the needle") == [1]
            assert Paste(f"{text[:at]}{{needle{text[at:]}").numbers("{needle") == [1]


def test_rows_are_found_with_and_without_prefixes() -> None:
    lines = [
        "  8   2 float",
        "[1,3]<stdout>:   8   2 float",
        "  8   2",
        "step 8 2 float",
        "8 2 float 0:1:2 [0] NCCL INFO",
    ]
    paste = Paste("\n".join(lines))
    assert paste.starting_with(re.compile(r" *\d+ +\d+ float"), range(1, 6)) == [1, 2, 5]


def test_the_beginning_of_a_line_ends_before_a_string() -> None:
    paste = Paste("a b c b\nx\nb c")
    assert paste.before("b", paste.numbers("b")) == ["a ", ""]


_AFTER_TIMES = [
    "",
    "NVRM: Xid",
    "nodeA:1:2 [0] NCCL INFO x",
    "| nodeA:1:2 [0] NCCL INFO x",
    "<stdout>: x",
    "[1]: x",
    "x",
]


@given(
    st.integers(0, 10**9),
    st.integers(1, 9),
    st.integers(0, 10**9),
    st.sampled_from(
        ["", " float", ": x", "- 1", ":1:2 [0] NCCL INFO x", " | nodeA:1:2 [0] NCCL INFO x", "-01-01T00:00:00Z"]
    ),
)
def test_two_numbers_begin_no_prefix_but_blanks(first: int, blanks: int, second: int, rest: str) -> None:
    row = f"{first}{' ' * blanks}{second}{rest}"
    for line in (row, f"   {row}"):
        assert line[: find_prefix(line).length].strip() == ""
        assert not may_have_prefix(line, 0, len(line))


@given(st.integers(0, 5), st.from_regex(r"\d{1,9}\.\d{1,9}", fullmatch=True), st.sampled_from(_AFTER_TIMES))
def test_a_time_of_the_kernel_begins_no_prefix(blanks: int, time: str, rest: str) -> None:
    line = f"[{' ' * blanks}{time}] {rest}"
    assert prefixes._PREFIX.match(line) is None
    assert prefixes._PREFIX_OF_FRAME.match(line) is None
    assert find_prefix(line).length == 0


def test_a_string_may_be_in_a_long_text_only_if_its_letters_are() -> None:
    for text in ("alpha 12", "\n".join(["alpha 12"] * 40_000)):
        paste = Paste(text)
        assert paste.may_contain("alpha")
        assert not paste.may_contain("beta")


def test_lines_that_are_close_are_one_span() -> None:
    assert spans_of("dmesg", [4, 5, 7, 40]) == [Span("dmesg", 4, 7, 3), Span("dmesg", 40, 40, 1)]


def test_a_text_with_too_many_items_is_refused() -> None:
    with pytest.raises(LimitError, match="has 3 characters, and more than 2 kernel messages; pass fewer"):
        check_number(Paste("Xid"), 3, "kernel messages", most=2, hint="pass fewer")
