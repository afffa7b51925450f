"""Timing in turns: in each round every member has its turn, so that noise of the machine hits all alike."""

import gc
import itertools
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from report import Target

Call = Callable[[], object]


class Step(NamedTuple):
    """One step of a member.

    Attributes:
      call: does the step and waits for it.
      temporaries: the bytes that the compiled step allocates besides arguments and results.
    """

    call: Call
    temporaries: Callable[[], int] | None = None


class Member(NamedTuple):
    """What takes part in a comparison: `make()` gives its step, or raises ImportError."""

    name: str
    make: Callable[[], Step]
    targets: tuple[Target, ...] = ()


def timed(call: Call, calls: int = 1) -> float:
    """Seconds a call."""
    start = time.perf_counter()
    for _ in itertools.repeat(None, calls):
        call()
    return (time.perf_counter() - start) / calls


def in_turns(members: Mapping[str, Call], rounds: int, turn: float) -> dict[str, list[float]]:
    """Seconds a call for each member and round.

    Args:
      members: what to time; called a few times before.
      rounds: how many.
      turn: about how many seconds a member's turn takes at least: short calls are repeated in it. Calls that
        take no more than ten turns come after one that is not timed, which ends what the last member's has
        left behind in caches and memory.
    """
    calls, warm = {}, set()
    for name, call in members.items():
        timed(call, 2)
        seconds = timed(call)
        calls[name] = max(1, round(turn / seconds))
        if seconds <= 10 * turn:
            warm.add(name)
    times: dict[str, list[float]] = {name: [] for name in members}
    for name in _order(list(members), rounds):
        if name in warm:
            members[name]()
        times[name].append(timed(members[name], calls[name]))
    return times


def first_calls(
    members: Mapping[str, Callable[[], Step]], rounds: int, forget: Call
) -> dict[str, list[float]]:
    """Seconds that the first call takes, each of a member made anew, after `forget()`."""
    times: dict[str, list[float]] = {name: [] for name in members}
    for name in _order(list(members), rounds):
        call = members[name]().call
        forget()
        times[name].append(timed(call))
    return times


def _order(names: Sequence[str], rounds: int) -> Iterator[str]:
    """Names round by round, each in an order of its own, while old objects are none to look for garbage."""
    shuffle = random.Random(0)
    gc.collect()
    gc.freeze()
    try:
        for _ in range(rounds):
            yield from shuffle.sample(names, len(names))
    finally:
        gc.unfreeze()
