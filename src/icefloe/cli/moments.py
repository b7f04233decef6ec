"""Instants on the command line: an age such as `30d`, a time, or `now`."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import click

_AGE = re.compile(r"(\d+)\s*([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class Moment(click.ParamType):  # type: ignore[type-arg] # generic in later releases
    """An instant: an age before now, or a time in ISO form, local unless it has a zone."""

    name = "age or time"

    def convert(self, value: Any, param: Any, ctx: Any) -> datetime:
        if isinstance(value, datetime):
            return value
        now = datetime.now(UTC)
        if value == "now":
            return now
        age = _AGE.fullmatch(value)
        try:
            if age is not None:
                return now - timedelta(**{_UNITS[age[2]]: int(age[1])})
            return datetime.fromisoformat(value).astimezone()
        except OverflowError:
            self.fail(f"{value!r} is before the year 1 or after the year 9999.", param, ctx)
        except ValueError:
            self.fail(
                f"{value!r} is neither an age such as 30d, 12h or 45m, nor a time such as "
                "2026-05-31 or 2026-05-31T12:00Z, nor now.",
                param,
                ctx,
            )
