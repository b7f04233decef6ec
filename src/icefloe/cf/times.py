"""Times as CF files keep them: numbers with units such as `hours since 1900-01-01 06:00 -6:00`.

What units mean is what xarray makes of them. It has two readers: pandas, for dates that nanoseconds
can count in calendars of today, and cftime for all else. They differ, most of all about time zones,
so both are imitated here. Units that xarray refuses count no time here either.

Files that are joined may count from different days or in different units. Decoded to microseconds
of one calendar their times can be put in order, and written again in the units of another file.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SECOND, _MINUTE, _HOUR, _DAY = 10**9, 60 * 10**9, 3600 * 10**9, 86400 * 10**9
_PANDAS_UNITS = {
    "nanosecond": 1,
    "microsecond": 10**3,
    "millisecond": 10**6,
    "second": _SECOND,
    "minute": _MINUTE,
    "hour": _HOUR,
    "day": _DAY,
}
_CFTIME_UNITS = {
    **dict.fromkeys(("microsecond", "microseconds", "microsec", "microsecs"), 10**3),
    **dict.fromkeys(("millisecond", "milliseconds", "millisec", "millisecs"), 10**6),
    **dict.fromkeys(("msec", "msecs", "ms"), 10**6),
    **dict.fromkeys(("second", "seconds", "sec", "secs", "s"), _SECOND),
    **dict.fromkeys(("minute", "minutes", "min", "mins"), _MINUTE),
    **dict.fromkeys(("hour", "hours", "hr", "hrs", "h"), _HOUR),
    **dict.fromkeys(("day", "days", "d"), _DAY),
}
_CALENDAR_UNITS = {("360_day", "month"): 30 * _DAY, ("noleap", "common_year"): 365 * _DAY}
"""Units that have a fixed length in some calendars only."""
_SINCE = r"\s*(?P<unit>\S+)\s+since\s+(?P<date>.*?)\s*\Z"
_CLOCK = r"(?P<hour>\d{1,2}):(?P<minute>\d{1,2})(?::(?P<second>\d{1,2}(?:\.\d*)?))?"
_PANDAS_DATE = (
    r"(?:(?P<year>\d{4})(?P<mark>[-/])(?P<month>\d{1,2})(?P=mark)(?P<day>\d{1,2})"
    r"|(?P<whole>\d{8})"
    r"|(?P<only_year>\d{4})(?:-(?P<only_month>\d{2}))?(?=\Z)"
    r"|(?P<us_month>\d{1,2})[-/](?P<us_day>\d{1,2})[-/](?P<us_year>\d{4}))"
    rf"(?:(?:[T\s]|,\s?)\s*(?:{_CLOCK}|(?P<only_hour>\d{{2}})))?"
    r"\s*(?P<zone>Z|UTC|GMT|[+-]\d{4}|[+-]\d{1,2}(?::\d{2}){0,2})?\Z"
)
_CFTIME_DATE = (
    r"(?P<year>[+-]?\d+)-(?P<month>\d{1,2})-(?P<day>\d{1,2})"
    r"(?:.(?P<hour>\d{1,2}):(?P<minute>\d{1,2})(?::(?P<second>\d{1,2}(?:\.\d+)?))?)?"
    r"(?:.?(?P<zone>Z|[+-]\d{2}(?::?\d{2})?))?"
)
_DAY_US = 86400 * 10**6
_MONTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)

STANDARD, PROLEPTIC = "standard", "proleptic_gregorian"
_CALENDARS = {
    "standard": STANDARD,
    "gregorian": STANDARD,
    "proleptic_gregorian": PROLEPTIC,
    "julian": "julian",
    "noleap": "noleap",
    "365_day": "noleap",
    "all_leap": "all_leap",
    "366_day": "all_leap",
    "360_day": "360_day",
}
_PANDAS_YEARS = range(1678, 2262)
_GREGORIAN_START = (1582, 10, 15)


@dataclass(frozen=True, slots=True)
class TimeUnits:
    """What one is, when zero was, and which days there are. Equal ones need no conversion."""

    unit_ns: int
    reference_us: int
    calendar: str

    def decode(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """Microseconds of the calendar; fractions are rounded, as far as doubles know them."""
        unit_us = self.unit_ns / 1000
        if values.dtype.kind in "iu" and self.unit_ns >= 1000:
            return values.astype(np.int64) * int(unit_us) + self.reference_us
        # Whole units and the rest apart: their product would lose the last digits.
        whole = np.floor(values.astype(np.float64))
        rest = np.rint((values.astype(np.float64) - whole) * unit_us)
        if self.unit_ns < 1000:
            return np.rint(whole * unit_us).astype(np.int64) + self.reference_us
        return whole.astype(np.int64) * int(unit_us) + rest.astype(np.int64) + self.reference_us

    def date_texts(self, values: NDArray[Any]) -> list[str] | None:
        """Dates such as `2001-02-30 12:00:00`, in the order of the texts.

        None if a year is not from 1 to 9999.
        """
        if (np.abs(values.astype(np.float64)) * (self.unit_ns / 1000) > 2.0**62).any():
            return None
        days, clock_us = np.divmod(self.decode(values), _DAY_US)
        years, months, in_month = _dates_of(days, self.calendar)
        if years.size and (years.min() < 1 or years.max() > 9999):
            return None
        seconds, us = np.divmod(clock_us, 10**6)
        clocks = seconds // 3600, seconds // 60 % 60, seconds % 60, us
        columns = (column.tolist() for column in (years, months, in_month, *clocks))
        return [
            f"{y:04}-{m:02}-{d:02} {hour:02}:{minute:02}:{second:02}" + (f".{u:06}" if u else "")
            for y, m, d, hour, minute, second, u in zip(*columns, strict=True)
        ]

    def encode(self, times_us: NDArray[np.int64], dtype: np.dtype[Any]) -> NDArray[Any] | None:
        """The numbers these units have for the times; None where `dtype` cannot hold them."""
        since_ns = (times_us - self.reference_us).astype(object) * 1000
        if dtype.kind in "iu":
            counted = since_ns // self.unit_ns
            if np.any(counted * self.unit_ns != since_ns):
                return None
            limits = np.iinfo(dtype)
            if counted.size and (counted.min() < limits.min or counted.max() > limits.max):
                return None
            return counted.astype(dtype)
        if dtype.kind != "f":
            return None
        encoded = (since_ns / self.unit_ns).astype(dtype)
        return encoded if np.array_equal(self.decode(encoded), times_us) else None


@lru_cache(maxsize=4096)
def parse_time_units(units: Any, calendar: Any = None) -> TimeUnits | None:
    """Units that count time since a date; None when they do not, or not in steps of fixed length.

    >>> parse_time_units("days since 1970-01-02")
    TimeUnits(unit_ns=86400000000000, reference_us=86400000000, calendar='standard')
    """
    known = _CALENDARS.get(STANDARD if calendar is None else str(calendar).lower())
    found = re.match(_SINCE, units) if isinstance(units, str) else None
    if found is None or known is None:
        return None
    word, text = found["unit"].lower(), found["date"]
    unit_ns = _PANDAS_UNITS.get(word.removesuffix("s"))
    date = _pandas_date(text) if known in (STANDARD, PROLEPTIC) and unit_ns else None
    if date is None:
        unit_ns = _CFTIME_UNITS.get(word) or _CALENDAR_UNITS.get((known, word.removesuffix("s")))
        date = _cftime_date(text)
    if unit_ns is None or date is None:
        return None
    year, month, day, clock_us = date
    if known == PROLEPTIC and (year, month, day) >= _GREGORIAN_START:
        known = STANDARD  # from then on they are the same
    days = _day_number(year, month, day, known)
    return None if days is None else TimeUnits(unit_ns, days * _DAY_US + clock_us, known)


def units_of(attributes: Mapping[str, Any], parent: Mapping[str, Any] | None = None) -> Any:
    """The time units that attributes tell of. Those of bounds are completed by their `parent`,
    the attributes of the variable whose bounds they are.
    """
    said = {**{key: (parent or {}).get(key) for key in ("units", "calendar")}, **attributes}
    units, calendar = said.get("units"), said.get("calendar")
    if not isinstance(units, str) or not isinstance(calendar, str | None):
        return None
    return parse_time_units(units, calendar)


def duration_ns(units: Any) -> int | None:
    """The length of one of these units, such as `hours`; None when they are none of a time span."""
    is_plural = isinstance(units, str) and units.endswith("s")
    return _PANDAS_UNITS.get(units.removesuffix("s")) if is_plural else None


Date = tuple[int, int, int, int]
"""Year, month, day, and microseconds of that day at Greenwich, which may be below 0."""


def _pandas_date(text: str) -> Date | None:
    """A date that pandas reads, and that nanoseconds can count."""
    found = re.match(_PANDAS_DATE, text)
    if found is None:
        return _asked_of_pandas(text)
    if (whole := found["whole"]) is not None:
        year, month, day = int(whole[:4]), int(whole[4:6]), int(whole[6:])
    elif found["us_year"] is not None:
        year, month, day = (int(found[name]) for name in ("us_year", "us_month", "us_day"))
    else:
        year = int(found["year"] or found["only_year"])
        month = int(found["month"] or found["only_month"] or 1)
        day = int(found["day"] or 1)
    if year not in _PANDAS_YEARS:
        return None
    clock_us = _clock_us(found["hour"] or found["only_hour"], found["minute"], found["second"])
    zone_us = _zone_us(found["zone"])
    if clock_us is None or abs(zone_us) >= _DAY_US:
        return None
    return year, month, day, clock_us - zone_us


def _asked_of_pandas(text: str) -> Date | None:
    """A date in a form that few files have, such as `1-Jan-1900`, as the installed pandas reads it.

    Where there is no pandas there is no xarray either.
    """
    if not re.search(r"\d{4}", text):  # then xarray takes the first number for the year
        year = re.match(r"\d+", text)
        if year is None:
            return None
        text = f"{int(year[0]):04d}{text[year.end() :]}"
    import pandas as pd

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of names of zones, which it does not know
            moment = pd.Timestamp(text)
            moment = moment if moment.tz is None else moment.tz_convert("UTC")
    except (ValueError, OverflowError, ImportError):
        return None
    if moment.year not in _PANDAS_YEARS:
        return None
    clock_s = (moment.hour * 60 + moment.minute) * 60 + moment.second
    return moment.year, moment.month, moment.day, clock_s * 10**6 + moment.microsecond


def _cftime_date(text: str) -> Date | None:
    """A date as cftime reads it, which ignores the rest, such as `-6:00`."""
    found = re.match(_CFTIME_DATE, text)
    if found is None:
        return None
    clock_us = _clock_us(found["hour"], found["minute"], found["second"])
    if clock_us is None:
        return None
    clock_us -= _zone_us(found["zone"])
    return int(found["year"]), int(found["month"]), int(found["day"]), clock_us


def _clock_us(hour: str | None, minute: str | None, second: str | None) -> int | None:
    whole, _, fraction = (second or "0").partition(".")
    hours, minutes, seconds = int(hour or 0), int(minute or 0), int(whole)
    if hours > 23 or minutes > 59 or seconds > 59:
        return None
    return (hours * 3600 + minutes * 60 + seconds) * 10**6 + int(f"{fraction:0<6.6}")


def _zone_us(zone: str | None) -> int:
    if zone is None or zone[0] not in "+-":
        return 0
    parts = [zone[1:3], zone[3:]] if re.fullmatch(r".\d{4}", zone) else zone[1:].split(":")
    hours, minutes, seconds = (int(part) for part in (*parts, "0", "0")[:3])
    return (-1 if zone[0] == "-" else 1) * (hours * 3600 + minutes * 60 + seconds) * 10**6


def _day_number(year: int, month: int, day: int, calendar: str) -> int | None:
    """Days since 1970-01-01, counted in the calendar itself; None if it has no such day."""
    date = (year, month, day)
    if not 1 <= month <= 12 or day < 1:
        return None
    if calendar == "360_day":
        return (year - 1970) * 360 + (month - 1) * 30 + day - 1 if day <= 30 else None
    if calendar == STANDARD and (1582, 10, 4) < date < _GREGORIAN_START:
        return None
    if calendar in (STANDARD, "julian"):
        if year == 0:
            return None
        year += year < 0  # there was no year 0
    is_julian = calendar == "julian" or (calendar == STANDARD and date < _GREGORIAN_START)
    is_fixed = calendar in ("noleap", "all_leap")
    is_leap = year % 4 == 0 and (is_julian or year % 100 != 0 or year % 400 == 0)
    if is_fixed:
        is_leap = calendar == "all_leap"
    if day > _MONTHS[month - 1] + (is_leap and month == 2):
        return None
    before = sum(_MONTHS[: month - 1]) + (is_leap and month > 2) + day - 1
    if is_fixed:
        return (year - 1970) * (365 + is_leap) + before
    past = year - 1
    days = past * 365 + past // 4 + before
    if not is_julian:
        days += past // 400 - past // 100
    # Day 0 above is 0001-01-01 of either calendar; the Julian one began two days earlier.
    return days - 719162 - 2 * is_julian


def _dates_of(days: NDArray[np.int64], calendar: str) -> tuple[NDArray[np.int64], ...]:
    """Years, months and days of the month: `_day_number` the other way round.

    For the calendars that the `datetime64` of numpy does not have.
    """
    if calendar == "360_day":
        years, rest = np.divmod(days, 360)
        return years + 1970, rest // 30 + 1, rest % 30 + 1
    if calendar == "julian":
        cycles, rest = np.divmod(days + 719164, 1461)
        in_cycle = np.minimum(rest // 365, 3)
        years, rest, is_leap = cycles * 4 + in_cycle + 1, rest - in_cycle * 365, in_cycle == 3
    else:
        years, rest = np.divmod(days, 366 if calendar == "all_leap" else 365)
        years, is_leap = years + 1970, np.full(days.shape, calendar == "all_leap")
    starts = np.cumsum([0, *_MONTHS[:-1]])
    starts_of = starts + is_leap[..., None] * (np.arange(12) > 1)
    months = (rest[..., None] >= starts_of).sum(-1)
    return (
        years,
        months,
        rest - np.take_along_axis(starts_of, months[..., None] - 1, -1)[..., 0] + 1,
    )


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
