"""Step time by the size of the problem, and a fit that shows what it grows with."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from report import Group, Row, Target, number

EXPONENT, QUADRATIC = "exponent at the end", "quadratic share"


def quadratic_share(sizes: Sequence[float], times: Sequence[float]) -> float:
    """What part of the time at the largest size a quadratic term has, in the best fit of `a + b n + c n**2`.

    The fit is one of relative errors, without negative terms.
    """
    n, t = np.array(sizes, float) / max(sizes), np.array(times)
    terms = [np.ones_like(n), n, n**2]
    kept = list(range(3))
    while True:
        matrix = np.stack([terms[i] / t for i in kept], axis=1)
        found = dict(zip(kept, np.linalg.lstsq(matrix, np.ones_like(t))[0], strict=True))
        if min(found.values()) >= 0:
            return float(found.get(2, 0.0) / sum(found.values()))
        kept.remove(min(found, key=lambda i: found[i]))


@dataclass
class Growth:
    """Seconds a step of each member by size; a member may stop early.

    Attributes:
      title: what it is.
      label: what the sizes count.
      sizes: in rising order.
      targets: what members are meant to reach.
      series: for each member the seconds at the sizes so far.
    """

    title: str
    label: str
    sizes: Sequence[int]
    targets: Mapping[str, tuple[Target, ...]] = field(default_factory=dict)
    series: dict[str, list[float]] = field(default_factory=dict)

    def add(self, size: int, times: Mapping[str, Sequence[float]]) -> None:
        """Adds what was measured at a size."""
        for name, rounds in times.items():
            self.series.setdefault(name, []).append(float(np.median(rounds)))

    def points(self, name: str) -> tuple[Sequence[int], list[float]]:
        """Sizes and seconds of a member."""
        times = self.series[name]
        return self.sizes[: len(times)], times

    def group(self) -> Group:
        """As a table: a row a member, a column a size."""
        rows = []
        for name in self.series:
            sizes, times = self.points(name)
            said = [f"{number(t * 1e3)} ms" for t in times] + ["-"] * (len(self.sizes) - len(times))
            facts: dict[str, Any] = {
                f"{size:,} {self.label}": text for size, text in zip(self.sizes, said, strict=True)
            }
            if len(sizes) > 3:
                (n0, n1), (t0, t1) = sizes[-2:], times[-2:]
                facts[EXPONENT] = math.log(t1 / t0) / math.log(n1 / n0)
                facts[QUADRATIC] = quadratic_share(sizes, times)
            rows.append(Row(name, targets=self.targets.get(name, ()), facts=facts))
        return Group(self.title, rows)
