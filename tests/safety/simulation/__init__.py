"""A world in a seed: clients, a storage with faults, clocks, and a model of what must hold.

    report = simulate(7)
    report.require()  # or Broken, with a program that runs the same world again

A seed draws three to eight clients and what each of them does (`worlds`). The coroutines of the
real operations (`operations`) are stepped in an order that the seed decides, over a storage whose
requests are late, refused or lost (`icefloe.testing.simulate`); nothing sleeps, and there are no
threads. `model` compares every write of a ref or of the `repo` object with what its operation may
do, and at the end every value. A world that breaks can be made smaller by `shrink`.

The same world takes the same steps each time in one process, and in others with the same
`PYTHONHASHSEED`: some operations send requests in the order of a set.
"""

from tests.safety.simulation.model import Broken
from tests.safety.simulation.worlds import (
    Op,
    Report,
    World,
    draw_world,
    run_world,
    shrink,
    simulate,
)

__all__ = ["Broken", "Op", "Report", "World", "draw_world", "run_world", "shrink", "simulate"]
