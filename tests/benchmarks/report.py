"""What was measured, as Markdown tables and as JSON."""

import json
import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import jax

PACKAGES = ["jax", "numpy", "optax", "keras", "flax", "tensorflow", "tensorflow-cpu", "torch"]
NONE = "-"
TEMPORARIES = "temporaries, bytes"
LOAD = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0  # before anything is measured


class Within(NamedTuple):
    """A target: a time of at most `ratio` of a peer's."""

    ratio: float
    peer: str

    def __str__(self) -> str:
        ratio = f"{self.ratio:.3g} x" if self.ratio >= 0.5 else f"1/{1 / self.ratio:.3g} of"
        return f"<= {ratio} {self.peer}"

    def value(self, row: "Row", group: "Group") -> float | None:
        """What there is of it; None if it was not measured."""
        peer = group.find(self.peer)
        return None if peer is None or not (row.times and peer.times) else 1 / row.times_faster(peer)

    def reached(self, value: float) -> bool:
        """Whether a value is good enough."""
        return value <= self.ratio


class AtMost(NamedTuple):
    """A target: a fact of at most `limit`."""

    fact: str
    limit: float

    def __str__(self) -> str:
        return f"{self.fact} <= {self.limit:g}"

    def value(self, row: "Row", group: "Group") -> float | None:
        """What there is of it; None if it was not measured."""
        return row.facts.get(self.fact)

    def reached(self, value: float) -> bool:
        """Whether a value is good enough."""
        return value <= self.limit


Target = Within | AtMost


@dataclass
class Row:
    """A member of a group.

    Attributes:
      name: what it is.
      times: seconds a call, one a round; empty if it was not measured.
      targets: what it is meant to reach.
      facts: further columns; why it was not measured, under "note".
    """

    name: str
    times: list[float] = field(default_factory=list)
    targets: tuple[Target, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def median(self) -> float:
        """Seconds a call."""
        return median(self.times)

    def times_faster(self, peer: "Row") -> float:
        """The median of the ratio in each round."""
        return median(b / a for a, b in zip(self.times, peer.times, strict=False))


@dataclass
class Group:
    """Members that do the same work; the first is what the others are compared with."""

    title: str
    rows: list[Row] = field(default_factory=list)

    def find(self, name: str) -> Row | None:
        """The member of a name."""
        return next((row for row in self.rows if row.name == name), None)

    def verdicts(self, row: Row) -> Iterator[tuple[Target, float | None, bool | None]]:
        """The targets of a row, what was measured, and whether that reaches them."""
        for target in row.targets:
            value = target.value(row, self)
            yield target, value, None if value is None else target.reached(value)

    def markdown(self) -> str:
        """A table."""
        facts = list(dict.fromkeys(key for row in self.rows for key in row.facts))
        has_targets = any(row.targets for row in self.rows)
        timed = any(row.times for row in self.rows)
        head = [self.title, *(["ms", "times faster"] if timed else []), *facts]
        rows = []
        for row in self.rows:
            cells = [row.name]
            if timed:
                cells += (
                    [number(row.median * 1e3), number(row.times_faster(self.rows[0]))]
                    if row.times
                    else [NONE] * 2
                )
            rows.append(cells + [number(row.facts.get(key, "")) for key in facts])
        if has_targets:
            head += ["target", "reached"]
            for row, cells in zip(self.rows, rows, strict=True):
                verdicts = list(self.verdicts(row))
                cells.append("; ".join(str(target) for target, _, _ in verdicts))
                cells.append("; ".join(said(value, reached) for _, value, reached in verdicts))
        return table(head, rows)

    def json(self) -> dict[str, Any]:
        """Everything, the time of each round too."""
        rows = []
        for row in self.rows:
            entry: dict[str, Any] = {"name": row.name, "facts": row.facts}
            if row.times:
                entry |= {"median_s": row.median, "times_s": row.times}
                entry["times_faster"] = row.times_faster(self.rows[0])
            entry["targets"] = [
                {"target": str(target), "value": value, "reached": reached}
                for target, value, reached in self.verdicts(row)
            ]
            rows.append(entry)
        return {"title": self.title, "rows": rows}


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def number(x: Any) -> str:
    """Three digits, no exponent of ten unless it is large."""
    if isinstance(x, str):
        return x
    return f"{x:.0f}" if 100 <= abs(x) < 1e6 else f"{x:.3g}"


def said(value: float | None, reached: bool | None) -> str:
    """A verdict in words."""
    return "not measured" if value is None else f"{'yes' if reached else '**no**'} ({number(value)})"


def machine() -> dict[str, Any]:
    """What it ran on."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "device": jax.devices()[0].device_kind,
        "devices": jax.device_count(),
        "cores": os.cpu_count(),
        "load": round(LOAD, 1),
        "python": platform.python_version(),
        "versions": versions,
    }


def heading(facts: dict[str, Any]) -> str:
    """What it ran on, in a line."""
    where = f"{facts['devices']} x {facts['device']}, {facts['cores']} cores"
    return f"{where}, JAX {facts['versions']['jax']}, load {facts['load']} at the start"


def write_json(path: Path, facts: dict[str, Any], groups: list[Group]) -> None:
    """Writes all that was measured."""
    data = {"machine": facts, "groups": [group.json() for group in groups]}
    path.write_text(json.dumps(data, indent=1), encoding="utf-8")
