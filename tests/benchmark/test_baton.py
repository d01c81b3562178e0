"""The baton between runs: who measures, in which order."""

from __future__ import annotations

import threading

from meshlab.benchmark._baton import Baton


def order_of(n_tasks: dict[str, int]) -> str:
    """Return the order in which runs with so many tasks each perform them."""
    baton = Baton(list(n_tasks))
    order: list[str] = []
    active = threading.Lock()

    def run(name: str) -> None:
        for _ in range(n_tasks[name]):
            baton.take(name)
            with active:  # never two at the same time
                order.append(name)
        baton.leave(name)

    threads = [threading.Thread(target=run, args=(name,), daemon=True) for name in n_tasks]
    for thread in threads:
        thread.start()
    baton.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    return "".join(order)


def test_two_runs_take_turns_in_the_opposite_order_every_second_time() -> None:
    assert order_of({"a": 6, "b": 6}) == "abbaabbaabba"


def test_three_runs_take_turns() -> None:
    assert order_of({"a": 3, "b": 3, "c": 3}) == "abccbaabc"


def test_the_others_continue_after_a_run_is_over() -> None:
    assert order_of({"a": 1, "b": 4}) == "abbbb"
    assert order_of({"a": 4, "b": 1}) == "abaaa"
    assert order_of({"a": 3, "b": 0}) == "aaa"


def test_a_released_baton_stops_nobody() -> None:
    baton = Baton("ab")
    waiting = threading.Thread(target=baton.take, args=("b",), daemon=True)
    waiting.start()
    baton.release()
    waiting.join(30)
    assert not waiting.is_alive()
    baton.take("b")
    baton.take("a")
