"""Rules for the results of nccl-tests."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from meshlab.diagnosis._findings import Rule, TextFinding, rule
from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis.formats._other_readers import read_tests_log


@rule(
    "wrong-results", "A collective returned wrong values", source="nccl-tests src/common.cu", causes=("worker-exited",)
)
def wrong_results(paste: Paste) -> Iterator[TextFinding]:
    """Look for rows of nccl-tests with wrong elements (``#wrong``), and for a failed check at the end of a test."""
    failed = [line for line in paste.find("Out of bounds values") if line.text.rstrip().endswith("FAILED")]
    if not failed and not paste.numbers("#wrong"):
        return
    log = paste.once(read_tests_log)
    names, lines, n_wrong, n_rows = [], [], 0, 0
    for section in log.sections if log is not None else ():
        table = section.table
        if not table.counted or not len(table):
            continue
        is_wrong = np.nan_to_num(np.where(table.present, table.values[..., 3], 0)) > 0
        n_rows += int(table.present.sum())
        if is_wrong.any():
            n_wrong += int(is_wrong.sum())
            names.append(section.collective or "a collective")
            lines += [int(number) for number in table.line[is_wrong.any(axis=1)] if number > 0]
    if not n_wrong and not failed:
        return
    count = f"{n_wrong:,} of {n_rows:,} measurements" if n_wrong else "Some measurements"
    yield wrong_results.finding(
        "error",
        ", ".join(dict.fromkeys(names)),
        f"{count} returned values that differ from the expected ones. Their bandwidth means nothing, and training on "
        "this machine would use wrong gradients. The text does not show which GPU or link is at fault.",
        "Repeat the test with fewer ranks until one host, pair or GPU remains, with NCCL_P2P_DISABLE=1 and with "
        "NCCL_NET_GDR_LEVEL=LOC for comparison, and look for Xid and ECC errors in dmesg and nvidia-smi -q -d ECC.",
        [*lines, *failed],
    )


MEASURED_RESULT_RULES: tuple[Rule, ...] = (wrong_results,)
