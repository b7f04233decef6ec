"""Growth curves as lines of the page: times at each size, and how steep they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SIDES = ("official", "icefloe")

NOISE = 1.1
"""Two runs of one program differ by as much."""
RESOLUTION_S = 0.0002
"""Times of any length differ by this much: official's look-ups at three sizes by twice as much."""


_HOW = """\
CPU time of one operation, *official / icefloe*, in milliseconds, at sizes that grow tenfold. The
slope is the time at the largest size over that at a tenth of it. A curve of icefloe is steeper if
its slope is, and if it also adds more milliseconds than official's does, by over a tenth and 0.2
ms.""".splitlines()


@dataclass(frozen=True, slots=True)
class Curve:
    """The CPU time of one operation at growing sizes, by both sides."""

    kind: str
    operation: str
    sizes: list[int]
    seconds: Mapping[str, list[float]]
    walls: Mapping[str, list[float]]

    def slope(self, side: str) -> float:
        """How many times longer it takes at the largest size than at a tenth of that."""
        before, last = self.seconds[side][-2:]
        return last / before

    def added(self, side: str) -> float:
        """How many seconds it takes longer at the largest size than at a tenth of that."""
        before, last = self.seconds[side][-2:]
        return last - before

    @property
    def is_steeper(self) -> bool:
        """Whether icefloe slows down more, as a ratio and in seconds."""
        official, ours = SIDES
        return (
            self.slope(ours) > self.slope(official) * NOISE
            and self.added(ours) > max(self.added(official), 0.0) * NOISE + RESOLUTION_S
        )


def curves(growth: Mapping[str, Any]) -> list[Curve]:
    """What the results say, in their order."""
    return [
        Curve(
            kind,
            operation,
            found["sizes"],
            {side: [cpu for _, cpu in found[side]] for side in SIDES},
            {side: [wall for wall, _ in found[side]] for side in SIDES},
        )
        for kind, operations in growth.items()
        for operation, found in operations.items()
    ]


def growth_lines(growth: Mapping[str, Any]) -> list[str]:
    """A table, those first in which icefloe slows down more."""
    found = sorted(curves(growth), key=lambda curve: not curve.is_steeper)
    steeper = [curve for curve in found if curve.is_steeper]
    lines = [
        *_HOW,
        "",
        f"Steeper than official's: {len(steeper)} of {len(found)}.",
        "",
        "| | | at the sizes | slope | added by the last tenfold |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    for curve in found:
        official, ours = SIDES
        times = [
            f"{size:,}: {_ms(curve.seconds[official][at])} / {_ms(curve.seconds[ours][at])}"
            for at, size in enumerate(curve.sizes)
        ]
        slope = f"{curve.slope(official):.2f} / {curve.slope(ours):.2f}"
        cells = [
            curve.kind,
            curve.operation,
            "<br>".join(times),
            f"**{slope} steeper**" if curve.is_steeper else slope,
            f"{_ms(curve.added(official))} / {_ms(curve.added(ours))}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def _ms(seconds: float) -> str:
    number = seconds * 1000
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.2g}"
