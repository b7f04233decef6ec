"""Times as CF conventions store them: numbers and a text such as `days since 2000-01-01`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import FormatError

_UNITS_NS = {
    "nanosecond": 1,
    "microsecond": 1_000,
    "millisecond": 1_000_000,
    "second": 1_000_000_000,
    "minute": 60_000_000_000,
    "hour": 3_600_000_000_000,
    "day": 86_400_000_000_000,
}
_SHORT = {
    "ns": "nanosecond",
    "us": "microsecond",
    "ms": "millisecond",
    "msec": "millisecond",
    "s": "second",
    "sec": "second",
    "min": "minute",
    "h": "hour",
    "hr": "hour",
    "d": "day",
}
_MIXED = ("standard", "gregorian")
_SINCE = re.compile(r"\s*(\w+)\s+since\s+(.+?)\s*\Z", re.IGNORECASE)
_DATE = re.compile(
    r"(\d{1,4})-(\d{1,2})-(\d{1,2})"
    r"(?:[T\s]+(\d{1,2})(?::(\d{1,2})(?::(\d{1,2}(?:\.\d*)?))?)?)?"
    r"\s*(?:Z|UTC|GMT|([+-])(\d{1,2}):?(\d{2})?)?\Z",
    re.IGNORECASE,
)
_US_PER_DAY = 86_400_000_000
_GREGORIAN_START_US = -12_219_292_800_000_000  # 1582-10-15


@dataclass(frozen=True, slots=True)
class TimeUnits:
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


def find_time_units(units: object, calendar: object) -> TimeUnits | None:
    """The units an array's attributes tell of, or None if they are none that a date follows from.

    Calendars that are not those of real dates (`noleap`, `360_day`, ...) stay numbers.
    """
    found = _SINCE.match(units) if isinstance(units, str) else None
    name = "standard" if calendar is None else str(calendar).lower()
    if found is None or name not in (*_MIXED, "proleptic_gregorian"):
        return None
    word = found[1].lower()
    unit = _UNITS_NS.get(_SHORT.get(word, word).removesuffix("s"))
    date = _DATE.match(found[2])
    if unit is None or date is None:
        return None
    year, month, day = int(date[1]), int(date[2]), int(date[3])
    is_mixed = name in _MIXED
    days = _days_since_1970(year, month, day, is_julian=is_mixed and (year, month, day) < _CHANGE)
    if days is None:
        return None
    seconds = int(date[4] or 0) * 3600 + int(date[5] or 0) * 60 + float(date[6] or 0)
    if date[7]:
        zone = int(date[8]) * 3600 + int(date[9] or 0) * 60
        seconds -= zone if date[7] == "+" else -zone
    return TimeUnits(unit, days * _US_PER_DAY + round(seconds * 1_000_000), is_mixed)


_CHANGE = (1582, 10, 15)


def _days_since_1970(year: int, month: int, day: int, *, is_julian: bool) -> int | None:
    if is_julian:
        shift = (14 - month) // 12
        years, months = year + 4800 - shift, month + 12 * shift - 3
        number = day + (153 * months + 2) // 5 + 365 * years + years // 4 - 32083
        return number - 2_440_588  # the Julian day number of 1970-01-01
    try:
        return int(np.datetime64(f"{year:04d}-{month:02d}-{day:02d}", "D").astype(np.int64))
    except ValueError:
        return None


def _too_far() -> FormatError:
    return FormatError(
        "a time is more than 100,000 years away from its reference; read the numbers with "
        "decode=False"
    )
