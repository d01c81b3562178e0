"""The file for NCCL's example tuner plugin, read by the rules of that plugin (plugins/tuner/example/plugin.c)."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshlab.base._errors import BenchError
from tests.analysis.trial_maker import DEFAULT, RING, SYSTEM, TREE, WINDOW, a_tuning, both, trial, usual_rows

COLLECTIVES = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")
ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
PROTOCOLS = ("ll", "ll128", "simple")


def plugin_choice(text: str, collective: str, size: int, *, n_ranks: int = 2, n_nodes: int = 1) -> tuple | None:
    """What the plugin would choose: its first matching line. It skips comments, and lines of less than 8 fields."""
    for line in text.split("\n"):
        assert len(line.encode()) < 255, "the plugin reads lines into 256 bytes"
        if not line or line.startswith("#"):
            continue
        fields = [field.strip() for field in line.split(",") if field]
        assert len(fields) == 10
        assert fields[0] in COLLECTIVES
        assert fields[3] in ALGORITHMS
        assert fields[4] in PROTOCOLS
        low, high, channels, nodes, ranks, operations, registered = (int(fields[i]) for i in (1, 2, 5, 6, 7, 8, 9))
        assert 0 <= low <= high < 2**64
        assert (operations, registered) == (-1, -1)
        if fields[0] == collective and low <= size <= high and nodes in (-1, n_nodes) and ranks in (-1, n_ranks):
            return fields[3], fields[4], channels
    return None


def test_every_size_of_a_tuned_collective_has_the_fastest_settable_option() -> None:
    config = a_tuning(usual_rows()).to_tuner_config()
    text = str(config)
    assert plugin_choice(text, "allreduce", 1024) == ("ring", "simple", 0)
    assert plugin_choice(text, "allreduce", 8192) == ("tree", "ll128", 0)
    for size in (0, 1, 3000, 5792, 1 << 32, 1 << 63, 2**64 - 1):
        assert plugin_choice(text, "allreduce", size) is not None
    assert plugin_choice(text, "allreduce", 1024, n_ranks=4) is None
    assert plugin_choice(text, "allgather", 1024) is None


def test_the_part_that_a_tuner_cannot_set_is_in_the_file() -> None:
    config = a_tuning(usual_rows()).to_tuner_config()
    (gain,) = config.gains
    assert gain.gain < gain.choice_gain
    assert str(gain) in str(config)
    words = " ".join(line.removeprefix("# ") for line in str(config).splitlines())
    assert "NCCL handles calls on symmetric windows before it calls the tuner" in words
    assert "on one channel with that plugin: all_gather, reduce_scatter, broadcast, reduce." in words


def test_channels_are_the_limit_of_the_option() -> None:
    few = {"algorithm": "ring", "protocol": "ll", "max_ctas": 2}
    rows = [*both(DEFAULT, 1024, 6.0, 6.0), *both(few, 1024, 5.0, 5.0)]
    assert plugin_choice(str(a_tuning(rows).to_tuner_config()), "allreduce", 1024) == ("ring", "ll", 2)


def test_an_option_that_was_kept_wins_over_one_that_was_dropped_early() -> None:
    rows = [*both(DEFAULT, 1024, 6.0, 6.0), trial(TREE, 1024, 5.0, status="dropped"), trial(RING, 1024, 5.5)]
    assert plugin_choice(str(a_tuning(rows).to_tuner_config()), "allreduce", 1024) == ("ring", "simple", 0)


def test_algorithms_without_a_protocol_are_simple() -> None:
    rows = [*both(DEFAULT, 1024, 6.0, 6.0), trial({"algorithm": "nvlstree"}, 1024, 5.0), trial(RING, 1024, 5.5)]
    assert plugin_choice(str(a_tuning(rows).to_tuner_config()), "allreduce", 1024) == ("nvls_tree", "simple", 0)


@pytest.mark.parametrize(
    "option",
    [
        {"algorithm": "ring"},
        {"protocol": "ll"},
        {"algorithm": "SYMK_LL", "buffers": "symmetric"},
        {**RING, "min_ctas": 4},
        {**RING, "cta_policy": "zero"},
        {**RING, "buffers": "registered"},
        {"max_ctas": 4},
    ],
)
def test_options_that_a_plugin_cannot_set_have_no_line(option: dict) -> None:
    config = a_tuning([*both(DEFAULT, 1024, 6.0, 6.0), *both(option, 1024, 3.0, 3.0)]).to_tuner_config()
    assert config.lines == ()
    assert "Do not use this file" in str(config)


def test_collectives_that_the_plugin_takes_for_all_reduce_have_no_line() -> None:
    rows = [*both(DEFAULT, 1024, 6.0, 6.0, collective="all_to_all"), trial(RING, 1024, 5.0, collective="all_to_all")]
    config = a_tuning(rows).to_tuner_config()
    assert config.lines == ()
    assert "all_to_all has no line" in str(config)


def test_lines_are_for_one_node_if_all_ranks_were_on_one_host() -> None:
    assert all(line.n_nodes == 1 for line in a_tuning(usual_rows()).to_tuner_config().lines)
    several = a_tuning(usual_rows(), system={**SYSTEM, "hosts": "gpu-7, gpu-8"}).to_tuner_config()
    assert all(line.n_nodes == -1 for line in several.lines)


def test_the_file_is_saved(tmp_path: Path) -> None:
    config = a_tuning(usual_rows()).to_tuner_config()
    path = config.save(tmp_path / "nccl_tuner.conf")
    assert path.read_text() == str(config)


def test_a_tuning_of_mpi_has_no_plugin() -> None:
    rows = [*both(DEFAULT, 1024, 6.0, 6.0), trial(WINDOW, 1024, 5.0)]
    with pytest.raises(BenchError, match="a tuner plugin is for NCCL, but this tuning was made on mpi; use to_env"):
        a_tuning(rows, system={"backend": "mpi"}).to_tuner_config()
