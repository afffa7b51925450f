"""Medians of one run as a Markdown table of ratios, a group of benchmarks a table."""

import pytest

RESULTS: dict[str, list[tuple[str, float, dict]]] = {}


@pytest.fixture
def measure(benchmark, request):
    """`measure(group, name, call, **facts)`: the median of `call`, which waits for what it starts.

    The first of a group is what the others are compared with.
    """

    def run(group: str, name: str, call, rounds: int = 15, **facts) -> float:
        benchmark.group = group
        benchmark.name = name
        benchmark.extra_info.update(facts)
        benchmark.pedantic(call, rounds=rounds, iterations=1, warmup_rounds=3)
        median = benchmark.stats.stats.median
        RESULTS.setdefault(group, []).append((name, median, facts))
        return median

    return run


def pytest_terminal_summary(terminalreporter) -> None:
    for group, rows in RESULTS.items():
        base = rows[0][1]
        terminalreporter.write_line(f"\n| {group} | ms | times faster | |\n|---|---|---|---|")
        for name, median, facts in rows:
            noted = ", ".join(f"{key} {value}" for key, value in facts.items())
            terminalreporter.write_line(f"| {name} | {median * 1e3:.3g} | {base / median:.3g} | {noted} |")
