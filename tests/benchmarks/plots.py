"""The comparisons as bars, and growth as lines."""

import math
from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from growth import Growth
from matplotlib.ticker import EngFormatter
from report import Group, number

# The first that a name begins with.
COLOURS = {
    "ours": "#1f5fb4",
    "optax, as": "#f0b37e",
    "optax": "#e07b21",
    "Keras": "#c23b3b",
    "TF1": "#8a6d3b",
    "flax": "#3f9c5a",
    "PyTorch, foreach": "#b59ad1",
    "PyTorch": "#7a4fa3",
}
SHADES = {"packed": "#0d2f66", "eager": "#4d8fe0", "in jit": "#8fbcf2"}
GREY = "#555555"


def colour(name: str) -> str:
    """The same for a library everywhere."""
    if name.startswith("ours"):
        return next((shade for word, shade in SHADES.items() if word in name), COLOURS["ours"])
    return next((c for start, c in COLOURS.items() if name.startswith(start)), GREY)


def draw(folder: Path, heading: str, groups: Sequence[Group], growths: Sequence[Growth]) -> list[Path]:
    """Draws what there is; returns the files."""
    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    paths = []
    for name, figure in (("speed.png", _bars(groups)), ("growth.png", _lines(growths))):
        if figure is not None:
            figure.suptitle(heading, fontsize=10, color=GREY)
            figure.savefig(folder / name, dpi=150)
            plt.close(figure)
            paths.append(folder / name)
    return paths


def _bars(groups: Sequence[Group]):
    """A panel a group: bars of time, with how many times faster than the first each is."""
    if not groups:
        return None
    columns = min(3, len(groups))
    lines = [groups[i : i + columns] for i in range(0, len(groups), columns)]
    counts = [max(sum(bool(row.times) for row in group.rows) for group in line) for line in lines]
    figure, axes = plt.subplots(
        len(lines),
        columns,
        figsize=(5.6 * columns, 0.25 * sum(counts) + 0.8 * len(lines)),
        height_ratios=[count + 1.2 for count in counts],
        squeeze=False,
        layout="constrained",
    )
    for ax in axes.flat[len(groups) :]:
        ax.axis("off")
    for i, group in enumerate(groups):
        _panel(axes.flat[i], group, counts[i // columns])
    for ax in axes[-1]:
        ax.set_xlabel("milliseconds; at the right: times faster than the first")
    return figure


def _panel(ax, group: Group, room: int) -> None:
    rows = [row for row in group.rows if row.times]
    times = [row.median * 1e3 for row in rows]
    ax.barh(range(len(rows)), times, color=[colour(row.name) for row in rows], height=0.72)
    for y, (row, t) in enumerate(zip(rows, times, strict=True)):
        note = {"textcoords": "offset points", "va": "center", "fontsize": 8, "color": GREY}
        ax.annotate(f"{number(t)} ms", (t, y), (4, 0), **note)
        ratio = "" if y == 0 else f"{number(row.times_faster(rows[0]))}x"
        ax.text(1.0, y, ratio, transform=ax.get_yaxis_transform(), va="center", ha="right", fontsize=8.5)
    low, high = 10 ** math.floor(math.log10(min(times)) - 0.3), max(times)
    # Room at the right for the notes.
    ax.set(xscale="log", xlim=(low, high * (high / low) ** 0.6), ylim=(room - 0.4, -0.6))
    ax.xaxis.set_major_formatter("{x:g}")
    ax.xaxis.set_minor_formatter("")
    ax.set_yticks(range(len(rows)), [row.name for row in rows])
    ax.tick_params(axis="y", length=0)
    title = "\n".join(wrap(group.title.replace("`", ""), 46))
    ax.set_title(title, loc="left", fontsize=9.5, fontweight="bold")


def _lines(growths: Sequence[Growth]):
    """A panel a growth, both axes logarithmic."""
    if not growths:
        return None
    figure, axes = plt.subplots(
        1, len(growths), figsize=(6.2 * len(growths), 4.6), squeeze=False, layout="constrained"
    )
    for ax, growth in zip(axes.flat, growths, strict=True):
        base = next(iter(growth.series))
        _, first = growth.points(base)
        noted: list[float] = []
        for i, name in enumerate(growth.series):
            sizes, times = growth.points(name)
            line = {"color": colour(name), "label": name, "markersize": 5}
            ax.plot(sizes, [t * 1e3 for t in times], "os^Dv"[i % 5] + "-", **line)
            last = min(len(times), len(first)) - 1
            if name != base:
                at, ratio = (sizes[last], times[last] * 1e3), f"{number(first[last] / times[last])}x"
                beside = sum(abs(math.log(at[1] / y)) < 0.5 for y in noted)  # one below the other
                noted.append(at[1])
                note = {"textcoords": "offset points", "ha": "center", "fontsize": 8, "color": colour(name)}
                ax.annotate(ratio, at, (0, -14 - 11 * beside), **note)
        linear = [first[-1] * 1e3 * n / growth.sizes[len(first) - 1] for n in growth.sizes]
        ax.plot(growth.sizes, linear, ":", color="#999999", label="linear", zorder=0)
        ax.set(xscale="log", yscale="log", ylabel="milliseconds a step")
        ax.set_xlabel(f"{growth.label}; numbers: times faster than {base}")
        ax.xaxis.set_major_formatter(EngFormatter())
        ax.yaxis.set_major_formatter("{x:g}")
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_minor_formatter("")
        ax.set_title(growth.title, loc="left", fontsize=9.5, fontweight="bold")
        ax.grid(True, which="major", color="#e5e5e5")
        ax.set_axisbelow(True)
        low, high = ax.get_ylim()
        ax.set_ylim(low, high * (high / low) ** 0.3)  # room for the legend
        ax.legend(frameon=False, fontsize=8.5, loc="upper left")
    return figure
