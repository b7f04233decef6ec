"""Times as NetCDF files keep them: numbers with units such as `hours since 1900-01-01`.

Files that are joined may count from different days or in different units. Decoded to microseconds
of one calendar their times can be put in order, and written again in the units of another file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

_UNIT = {
    **dict.fromkeys(("microsecond", "microseconds", "microsec", "microsecs", "us"), 1),
    **dict.fromkeys(("millisecond", "milliseconds", "millisec", "millisecs", "msec", "ms"), 1000),
    **dict.fromkeys(("second", "seconds", "sec", "secs", "s"), 10**6),
    **dict.fromkeys(("minute", "minutes", "min", "mins"), 60 * 10**6),
    **dict.fromkeys(("hour", "hours", "hr", "hrs", "h"), 3600 * 10**6),
    **dict.fromkeys(("day", "days", "d"), 86400 * 10**6),
    **dict.fromkeys(("week", "weeks"), 7 * 86400 * 10**6),
}
_SINCE = re.compile(
    r"^\s*(?P<unit>\w+)\s+since\s+(?P<year>[+-]?\d+)-(?P<month>\d{1,2})-(?P<day>\d{1,2})"
    r"(?:[T\s]+(?P<hour>\d{1,2}):(?P<minute>\d{1,2})(?::(?P<second>\d{1,2}(?:\.\d*)?))?)?"
    r"\s*(?P<zone>Z|UTC|GMT|[+-]\d{1,2}(?::?\d{2})?)?\s*$",
    re.IGNORECASE,
)
_DAY_US = 86400 * 10**6
_BEFORE_MONTH = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334)

STANDARD = "standard"
_CALENDARS = {
    "standard": STANDARD,
    "gregorian": STANDARD,
    "proleptic_gregorian": "proleptic_gregorian",
    "julian": "julian",
    "noleap": "noleap",
    "365_day": "noleap",
    "all_leap": "all_leap",
    "366_day": "all_leap",
    "360_day": "360_day",
}


@dataclass(frozen=True, slots=True)
class TimeUnits:
    """What one is, when zero was, and which days there are. Equal ones need no conversion."""

    unit_us: int
    reference_us: int
    calendar: str

    def decode(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """Microseconds of the calendar; fractions are rounded, as far as doubles know them."""
        if values.dtype.kind in "iu":
            return values.astype(np.int64) * self.unit_us + self.reference_us
        # Whole units and the rest apart: their product would lose the last digits.
        whole = np.floor(values.astype(np.float64))
        rest = np.rint((values.astype(np.float64) - whole) * self.unit_us)
        return whole.astype(np.int64) * self.unit_us + rest.astype(np.int64) + self.reference_us

    def encode(self, times_us: NDArray[np.int64], dtype: np.dtype[Any]) -> NDArray[Any] | None:
        """The numbers these units have for the times; None where `dtype` cannot hold them."""
        since = times_us - self.reference_us
        if dtype.kind in "iu":
            if np.any(since % self.unit_us):
                return None
            counted = since // self.unit_us
            limits = np.iinfo(dtype)
            if counted.size and (counted.min() < limits.min or counted.max() > limits.max):
                return None
            return counted.astype(dtype)
        if dtype.kind != "f":
            return None
        encoded = (since / self.unit_us).astype(dtype)
        return encoded if np.array_equal(self.decode(encoded), times_us) else None

    def is_comparable(self, other: TimeUnits) -> bool:
        """Whether times of both mean the same days."""
        return self.calendar == other.calendar


@lru_cache(maxsize=4096)
def parse_time_units(units: Any, calendar: Any = None) -> TimeUnits | None:
    """Units that count time since a date; None when they do not, or not in steps of fixed length.

    >>> parse_time_units("days since 1970-01-02")
    TimeUnits(unit_us=86400000000, reference_us=86400000000, calendar='standard')
    """
    known = _CALENDARS.get(str(calendar or STANDARD).lower())
    found = _SINCE.match(units) if isinstance(units, str) else None
    if found is None or known is None:
        return None
    unit_us = _UNIT.get(found["unit"].lower())
    if unit_us is None:
        return None
    month, day = int(found["month"]), int(found["day"])
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return None
    year = int(found["year"])
    if known == "proleptic_gregorian" and (year, month, day) >= (1582, 10, 15):
        known = STANDARD  # from then on they are the same
    seconds = float(found["second"] or 0)
    clock = int(found["hour"] or 0) * 3600 + int(found["minute"] or 0) * 60
    clock_us = clock * 10**6 + round(seconds * 10**6) - _zone_us(found["zone"])
    return TimeUnits(unit_us, _day_number(year, month, day, known) * _DAY_US + clock_us, known)


def _zone_us(zone: str | None) -> int:
    if zone is None or not zone.startswith(("+", "-")):
        return 0
    digits = zone[1:].replace(":", "")
    hours, minutes = int(digits[:2]), int(digits[2:] or 0)
    return (-1 if zone[0] == "-" else 1) * (hours * 60 + minutes) * 60 * 10**6


def _day_number(year: int, month: int, day: int, calendar: str) -> int:
    """Days since 1970-01-01, counted in the calendar itself."""
    if calendar == "360_day":
        return (year - 1970) * 360 + (month - 1) * 30 + day - 1
    before = _BEFORE_MONTH[month - 1] + day - 1
    if calendar == "noleap":
        return (year - 1970) * 365 + before
    if calendar == "all_leap":
        return (year - 1970) * 366 + before + (month > 2)
    is_julian = calendar == "julian" or (
        calendar == STANDARD and (year, month, day) < (1582, 10, 15)
    )
    past = year - 1
    is_leap = year % 4 == 0
    days = past * 365 + past // 4
    if not is_julian:
        is_leap = is_leap and (year % 100 != 0 or year % 400 == 0)
        days += past // 400 - past // 100
    days += before + (is_leap and month > 2)
    # Day 0 above is 0001-01-01 of either calendar; the Julian one began two days earlier.
    return days - 719162 - (2 if is_julian else 0)


def convert_times(
    values: NDArray[Any],
    given: TimeUnits,
    wanted: TimeUnits,
    dtype: np.dtype[Any],
    missing: Any = None,
) -> NDArray[Any] | None:
    """Times in other units; None where `dtype` cannot hold them exactly.

    NaN and values equal to `missing` stay what they are.
    """
    is_time = np.isfinite(values) if values.dtype.kind == "f" else np.ones(values.shape, bool)
    if missing is not None:
        is_time &= values != missing
    converted = wanted.encode(given.decode(values[is_time]), dtype)
    if converted is None:
        return None
    result = values.astype(dtype)
    result[is_time] = converted
    return result
