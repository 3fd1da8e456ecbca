"""Results for people and for files: a table, JSON, a plot."""

import json
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from .measure import Failed, Time
from .registry import Work


def as_rows(work: Work, times: dict[str, Time | Failed]) -> list[dict[str, Any]]:
    """One row a variant, as plain values; `ratio` is the baseline's median over the variant's."""
    base = times.get(work.baseline)
    rows = []
    for label, time in times.items():
        row: dict[str, Any] = {"work": work.name, "group": work.group, **work.sizes, "variant": label}
        if isinstance(time, Failed):
            row["error"] = time.error
        else:
            row |= {
                "microseconds": _rounded(time.median * 1e6),
                "least": _rounded(time.least * 1e6),
                "most": _rounded(time.most * 1e6),
                "repetitions": time.repetitions,
                "graph": time.graph,
                "teraops": _rounded(work.operations / time.median / 1e12),
                "gigabytes_per_second": _rounded(work.traffic / time.median / 1e9),
                "ratio": _rounded(base.median / time.median) if isinstance(base, Time) else None,
                "baseline": work.baseline,
            }
        rows.append(row)
    return rows


def table(title: str) -> Table:
    """An empty table for `add`."""
    found = Table(title=title, title_justify="left")
    for heading in ("work", "variant"):
        found.add_column(heading)
    for heading in ("us", "least..most", "Top/s", "GB/s", "x baseline"):
        found.add_column(heading, justify="right")
    return found


def add(to: Table, rows: list[dict[str, Any]]) -> None:
    """The rows of one work, set off from the next."""
    for i, row in enumerate(rows):
        name = row["work"] if i == 0 else ""
        last = i + 1 == len(rows)
        if "error" in row:
            to.add_row(name, row["variant"], "failed", "", "", "", "", style="red", end_section=last)
            continue
        ratio = "-" if row["ratio"] is None else f"{row['ratio']:.3f}"
        spread = f"{row['least']:g}..{row['most']:g}"
        to.add_row(name, row["variant"], f"{row['microseconds']:g}", spread, f"{row['teraops']:g}",
                   f"{row['gigabytes_per_second']:g}", ratio, end_section=last)  # fmt: skip


def write(path: Path, machine: dict[str, Any], benchmark: str, rows: list[dict[str, Any]]) -> None:
    """Everything, one row a line."""
    head = json.dumps({"benchmark": benchmark, **machine}, indent=1)[:-2]
    lines = ",\n".join("  " + json.dumps(row) for row in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{head},\n "rows": [\n{lines}\n ]\n}}\n')


def plot(path: Path, machine: dict[str, Any], rows: list[dict[str, Any]], console: Console) -> None:
    """Squares as throughput over size; layers as ratio to the baseline over the number of rows; others as bars."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        console.print("No plot: it needs matplotlib (pip install 'repkernels[bench]')")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    measured = [row for row in rows if "error" not in row]
    squares = [row for row in measured if row["group"].startswith("square")]
    layers = [row for row in measured if "M" in row and row not in squares]
    others = [row for row in measured if "M" not in row and row["variant"] != row["baseline"]]
    panels = [(kind, [r for r in squares if r["group"] == kind]) for kind in dict.fromkeys(r["group"] for r in squares)]
    panels += [(kind, part) for kind, part in (("layers", layers), ("works", others)) if part]
    if not panels:
        return
    height = max(5.0, 0.45 * len(dict.fromkeys(row["work"] for row in others)))
    figure, axes = pyplot.subplots(1, len(panels), figsize=(6.5 * len(panels), height), squeeze=False)
    for axis, (kind, part) in zip(axes[0], panels, strict=True):
        if kind == "works":
            _bars(axis, part)
        else:
            _curves(axis, kind, part)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    figure.suptitle(f"{machine['device']}, torch {machine['torch']}, commit {machine['commit']}")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _curves(axis: Any, kind: str, rows: list[dict[str, Any]]) -> None:
    by_rows = kind == "layers"
    for variant in dict.fromkeys(row["variant"] for row in rows):
        mine = [row for row in rows if row["variant"] == variant]
        x, y = _line(mine, "M", "ratio") if by_rows else _line(mine, "N", "teraops")
        style = {"color": "black", "linestyle": "--"} if variant in {row["baseline"] for row in rows} else {}
        axis.plot(x, y, label=variant, marker="o", markersize=4, **style)
    axis.set_xscale("log", base=2)
    axis.set_xlabel("rows M" if by_rows else "size of the square")
    axis.set_ylabel("speed relative to the baseline, median over layers" if by_rows else "TFLOP/s")
    axis.set_ylim(bottom=0)
    axis.set_title(kind)


def _bars(axis: Any, rows: list[dict[str, Any]]) -> None:
    works = list(dict.fromkeys(row["work"] for row in rows))
    variants = list(dict.fromkeys(row["variant"] for row in rows))
    for k, variant in enumerate(variants):
        mine = [row for row in rows if row["variant"] == variant and row["ratio"] is not None]
        places = [works.index(row["work"]) + (k + 0.5) / len(variants) * 0.8 - 0.4 for row in mine]
        axis.barh(places, [row["ratio"] for row in mine], height=0.8 / len(variants), label=variant)
    axis.axvline(1, color="black", linestyle="--", label=", ".join(dict.fromkeys(row["baseline"] for row in rows)))
    axis.set_yticks(range(len(works)), works, fontsize=8)
    axis.invert_yaxis()
    axis.set_xlabel("speed relative to the baseline")


def _line(rows: list[dict[str, Any]], x: str, y: str) -> tuple[list[int], list[float]]:
    """The places of x and the median of y at each."""
    places = sorted({row[x] for row in rows if row[y] is not None})
    return places, [median(row[y] for row in rows if row[x] == place and row[y] is not None) for place in places]


def _rounded(x: float) -> float:
    """Four significant digits, which is more than a repetition gives."""
    return float(f"{x:.4g}")
