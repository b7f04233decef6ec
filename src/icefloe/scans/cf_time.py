"""Times of CF conventions as timestamps; what units mean is decided in `icefloe.cf.times`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icefloe.cf.times import duration_ns, units_of
from icefloe.errors import FormatError

_MIXED = ("standard", "gregorian")
_GREGORIAN_START_US = -12_219_292_800_000_000  # 1582-10-15


@dataclass(frozen=True, slots=True)
class TimestampUnits:
    """How a number becomes microseconds since 1970."""

    unit_ns: int
    reference_us: int
    is_mixed_calendar: bool

    def decode(self, values: NDArray[Any], mask: NDArray[np.bool_] | None) -> NDArray[Any]:
        """Datetimes in microseconds; what is masked may hold anything.

        Raises:
            FormatError: a time is too far away, or before 1582 in a calendar that was another
                one then.
        """
        if mask is not None:
            values = np.where(mask, values.dtype.type(0), values)
        if values.dtype.kind == "f":
            moved = values.astype(np.float64) * (self.unit_ns / 1000)
            if not bool((np.abs(moved) < 2.0**62).all()):
                raise _too_far()
            offset = np.rint(moved).astype(np.int64)
        elif self.unit_ns >= 1000:
            factor = self.unit_ns // 1000
            if (
                values.size
                and max(abs(int(values.min())), abs(int(values.max()))) > 2**62 // factor
            ):
                raise _too_far()
            offset = values.astype(np.int64) * factor
        else:
            offset = values.astype(np.int64) // (1000 // self.unit_ns)
        found = offset + self.reference_us
        if self.is_mixed_calendar and found.size and int(found.min()) < _GREGORIAN_START_US:
            raise FormatError(
                "a time lies before 1582-10-15, where the standard calendar is the Julian one; "
                "read the numbers with decode=False"
            )
        return found.view("M8[us]")


def find_time_units(
    attributes: Mapping[str, Any], parent: Mapping[str, Any] | None = None
) -> TimestampUnits | None:
    """The units an array's attributes tell of, or None if they are none that a date follows from.

    `parent` are the attributes of the array whose bounds it holds. Calendars that are not those
    of real dates (`noleap`, `360_day`, ...) stay numbers.
    """
    calendar = attributes.get("calendar", (parent or {}).get("calendar"))
    name = "standard" if calendar is None else str(calendar).lower()
    if name not in (*_MIXED, "proleptic_gregorian"):
        return None
    found = units_of(attributes, parent)
    if found is None:
        return None
    return TimestampUnits(found.unit_ns, found.reference_us, name in _MIXED)


def find_duration_units(attributes: Mapping[str, Any]) -> TimestampUnits | None:
    """The unit of durations, which xarray marks by their data type beside the unit."""
    said = attributes.get("dtype")
    if not isinstance(said, str) or not said.startswith("timedelta64"):
        return None
    unit_ns = duration_ns(attributes.get("units"))
    return None if unit_ns is None else TimestampUnits(unit_ns, 0, is_mixed_calendar=False)


def _too_far() -> FormatError:
    return FormatError(
        "a time is more than 100,000 years away from its reference; read the numbers with "
        "decode=False"
    )
