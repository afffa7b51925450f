"""Benchmarks in groups: each becomes a Markdown table of medians and ratios of one run.

`pytest -n 0 tests/benchmarks/bench_speed.py --quick` runs all of it at small sizes, within a minute.
"""

import gc
import os
from collections.abc import Callable, Sequence
from pathlib import Path

# One process hosts several libraries: JAX must not take all of a GPU's memory, and the threads of
# OpenMP must sleep when their work is done. All of these are read when the libraries start.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax
import pytest
from growth import Growth
from report import TEMPORARIES, Group, Row, heading, machine, write_json
from turns import Member, Step, first_calls, in_turns, timed

MEASURED: dict[str, Group] = {}
COMPARED: list[Group] = []
GROWTHS: list[Growth] = []


def pytest_addoption(parser) -> None:
    group = parser.getgroup("benchmarks of optax_compat")
    group.addoption("--quick", action="store_true", help="small sizes and few rounds, to see that all runs")
    group.addoption("--results", default="build/benchmarks", help="the folder for speed.json and the plots")


@pytest.fixture
def quick(request) -> bool:
    """Whether sizes are small."""
    return request.config.getoption("--quick")


@pytest.fixture
def measure(benchmark):
    """`measure(group, name, call, **facts)`: the median of `call`, which waits for what it starts.

    The first of a group is what the others are compared with.
    """

    def run(group: str, name: str, call, rounds: int = 15, **facts) -> float:
        benchmark.group = group
        benchmark.name = name
        benchmark.extra_info.update(facts)
        benchmark.pedantic(call, rounds=rounds, iterations=1, warmup_rounds=3)
        row = Row(name, list(benchmark.stats.stats.data), facts=facts)
        MEASURED.setdefault(group, Group(group)).rows.append(row)
        return row.median

    return run


@pytest.fixture
def hand_over(benchmark):
    """`hand_over(group, row)`: makes pytest-benchmark show and save what was timed in turns."""

    def run(group: str, row: Row) -> None:
        if row.times:
            benchmark.group, benchmark.name, benchmark.extra_info = group, row.name, row.facts
            stats = benchmark._make_stats(1)  # there is no public way for times that it has not taken itself
            for seconds in row.times:
                stats.update(seconds)

    benchmark._mode = "in turns"
    return run


def _made(title: str, members: Sequence[Member]) -> tuple[list[Row], dict[str, Step]]:
    """A row for each member, and the steps of those that are installed."""
    rows, steps = [], {}
    for member in members:
        row = Row(member.name, targets=member.targets)
        rows.append(row)
        try:
            steps[member.name] = member.make()
        except ImportError as error:
            row.facts["note"] = f"not installed: {error.name or error}"
            if len(rows) == 1:
                pytest.skip(f"{title}: {row.facts['note']}")
    return rows, steps


def _count_temporaries(row: Row, step: Step) -> None:
    if step.temporaries is not None:
        row.facts[TEMPORARIES] = step.temporaries()


def _free() -> None:
    """Lets go of what is not used any more: the next one may need most of the memory."""
    jax.clear_caches()
    gc.collect()


@pytest.fixture
def compare(hand_over, quick):
    """`compare(title, members)`: times the members in turns; the first is what the others are compared with.

    A member whose library is missing is noted; without that of the first the group is skipped.
    """

    def run(
        title: str,
        members: Sequence[Member],
        rounds: int = 15,
        first_call: bool = False,
        temporaries: bool = False,
    ) -> Group:
        rounds = min(rounds, 3) if quick else rounds
        rows, steps = _made(title, members)
        if first_call:
            times = first_calls(
                {m.name: m.make for m in members if m.name in steps}, rounds, jax.clear_caches
            )
        else:
            times = in_turns({name: s.call for name, s in steps.items()}, rounds, 0.002 if quick else 0.02)
        for row in rows:
            row.times = times.get(row.name, [])
            if temporaries and row.name in steps:
                _count_temporaries(row, steps[row.name])
            hand_over(title, row)
        steps.clear()
        _free()
        COMPARED.append(group := Group(title, rows))
        return group

    return run


@pytest.fixture
def grow(hand_over, quick):
    """`grow(growth, makers)`: times the members, made for each size, in turns.

    A member takes part up to the size at which its first call takes longer than `patience` seconds.
    """

    def run(growth: Growth, makers: dict[str, Callable[[int], Step]], patience: float = 20.0) -> None:
        for size in growth.sizes:
            calls = {name: make(size).call for name, make in makers.items()}
            makers = {name: makers[name] for name, call in calls.items() if timed(call) <= patience}
            times = in_turns(calls, *((3, 0.002) if quick else (9, 0.02)))
            growth.add(size, times)
            for name, seconds in times.items():
                hand_over(growth.title, Row(f"{name}, {size:,} {growth.label}", seconds))
            calls.clear()
            _free()
        GROWTHS.append(growth)

    return run


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter) -> None:
    """Prints the tables; writes and draws what was compared."""
    growths = [growth.group() for growth in GROWTHS]
    groups = [*COMPARED, *growths, *MEASURED.values()]
    if not groups:
        return
    facts = machine()
    tables = [heading(facts), *(group.markdown() for group in groups)]
    terminalreporter.write_line("\n" + "\n\n".join(tables) + "\n")
    if not COMPARED and not GROWTHS:
        return
    folder = Path(terminalreporter.config.getoption("--results"))
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "speed.json", facts, groups)
    terminalreporter.write_line(f"Everything, round by round: {folder / 'speed.json'}")
    try:
        import plots
    except ImportError:  # matplotlib
        return
    for path in plots.draw(folder, heading(facts), COMPARED, GROWTHS):
        terminalreporter.write_line(f"Drawn: {path}")
