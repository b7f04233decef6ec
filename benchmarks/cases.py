"""What a row of the page is: a scenario of either side, the steps that count, the targets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

ScenarioName = tuple[str, ...]
"""Module, function, dataset, side, further arguments."""

COLD, WARM = "cold", "warm"

START, HISTORY, COMMITS, CHUNKS, REFERENCES, NODES, MAINTENANCE, SPARK = (
    "cold start",
    "history",
    "commits",
    "chunks",
    "references",
    "nodes",
    "maintenance",
    "Spark",
)
"""The groups, in the order of the page."""

GROUPS = (START, HISTORY, COMMITS, CHUNKS, REFERENCES, NODES, MAINTENANCE, SPARK)


@dataclass(frozen=True, slots=True)
class Side:
    """Steps of a scenario that count, taken together."""

    scenario: ScenarioName
    steps: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """One row. `note` tells what a reader might otherwise take for granted."""

    name: str
    official: Side
    ours: Side
    group: str
    note: str = ""
    cpu_target: float | None = 1.0
    """How many times less CPU than official icefloe is to need."""
    wall_target: float | None = 1.0
    """How many times less wall time; None where icefloe waits for a disk and official does not."""
    requests_target: float | None = None
    """How many times fewer requests than official icefloe is to make."""

    def is_about(self, text: str) -> bool:
        """Whether the case is meant by what a user typed."""
        return text in self.name or text == self.group

    @property
    def scenarios(self) -> tuple[ScenarioName, ScenarioName]:
        return self.official.scenario, self.ours.scenario


def measured_together(cases: Iterable[Case]) -> list[list[Case]]:
    """Cases that share scenarios, as one list each: their scenarios run only once a round."""
    clusters: list[list[Case]] = []
    for case in cases:
        sharing = [
            cluster
            for cluster in clusters
            if any(set(one.scenarios) & set(case.scenarios) for one in cluster)
        ]
        clusters = [cluster for cluster in clusters if cluster not in sharing]
        clusters.append([*(one for cluster in sharing for one in cluster), case])
    return clusters
