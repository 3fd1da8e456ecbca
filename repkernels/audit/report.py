"""What an audit found: a row for each operation, module and direction."""

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rich.console import Console
from rich.table import Table

_STYLES = {"safe": "dim", "ours": "green", "not reproducible": "red"}


@dataclass
class Row:
    """One operation in one module, forward or backward.

    operation: as torch names it, `aten::add.Tensor` or `repkernels::matmul`. module: its path, the model's class name
    first. verdict: "safe", "ours" or "not reproducible", and why. peak: of a contraction, the largest ratio of a
    contracted vector's maximum to its root mean square, of all operands of all calls; `fixed` loses as many of the
    small elements' digits as it has digits before the point.
    """

    operation: str
    module: str
    direction: str
    verdict: str
    reason: str
    count: int = 0
    peak: float | None = None


@dataclass
class Report:
    """The rows, in the order in which their operations first ran; printable by print() and by rich."""

    rows: list[Row] = field(default_factory=list)

    @property
    def reproducible(self) -> bool:
        """Whether every operation is safe or this library's."""
        return all(row.verdict != "not reproducible" for row in self.rows)

    @property
    def refused(self) -> list[Row]:
        """The rows of what is not reproducible."""
        return [row for row in self.rows if row.verdict == "not reproducible"]

    def as_json(self) -> dict[str, Any]:
        """{"reproducible", "counts", "rows"}, of what JSON holds."""
        counts = {name: sum(row.count for row in self.rows if row.verdict == name) for name in _STYLES}
        return {"reproducible": self.reproducible, "counts": counts, "rows": [asdict(row) for row in self.rows]}

    def table(self) -> Table:
        """A table for rich: what is not reproducible first, module by module; the others once for all modules."""
        table = Table(title="Operations that ran", title_justify="left")
        for name in ("operation", "module", "direction", "verdict", "why"):
            table.add_column(name, overflow="fold")
        table.add_column("calls", justify="right")
        table.add_column("max / rms", justify="right")
        for row in self._merged():
            peak = "" if row.peak is None else f"{row.peak:.1f}"
            cells = (row.operation, row.module, row.direction, row.verdict, row.reason, str(row.count), peak)
            table.add_row(*cells, style=_STYLES[row.verdict])
        return table

    def _merged(self) -> list[Row]:
        found: dict[tuple[str, ...], list[Row]] = {}
        for row in self.rows:
            module = row.module if row.verdict == "not reproducible" else ""
            found.setdefault((row.operation, row.direction, row.verdict, module), []).append(row)
        merged = []
        for rows in found.values():
            peaks = [row.peak for row in rows if row.peak is not None]
            module = rows[0].module if len(rows) == 1 else f"{len(rows)} modules"
            count, peak = sum(row.count for row in rows), max(peaks, default=None)
            merged.append(replace(rows[0], module=module, count=count, peak=peak))
        order = list(reversed(_STYLES))
        return sorted(merged, key=lambda row: order.index(row.verdict))

    def __rich__(self) -> Table:
        return self.table()

    def __str__(self) -> str:
        console = Console(width=160, no_color=True)
        with console.capture() as capture:
            console.print(self.table())
        return capture.get()
