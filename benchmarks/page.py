"""What stands between the markers of two pages, made from the results.

`docs/performance.md` shows the rows that matter most to a user, `docs/measurements.md` all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from benchmarks.cases import COLD, GROUPS, WARM
from benchmarks.growth_table import growth_lines
from benchmarks.results import Figures, Results, Row

PAGE = Path(__file__).parents[1] / "docs" / "measurements.md"
SHORT_PAGE = PAGE.with_name("performance.md")
START, END = "<!-- measured: made by `make bench` -->", "<!-- end of what was measured -->"
BARS, CURVES = "images/performance.svg", "images/growth.svg"

_HOW = """\
Each row is *the other side / icefloe* and how many times more the other side needs: above 1 icefloe
is ahead. The other side is official Icechunk unless the row names another. Every figure is the
least of several rounds, in each of which both sides run in new processes, one after the other, in
turns in either order. *Cold* is the first time in a new process, with the import of the library,
and of Zarr where a store is needed (a cold start: the whole program, the interpreter included);
*warm* is the second time. CPU is user and system time of all threads. Requests are those that an S3
server on the same machine received; *S3 with 20 ms* waits so long before it answers. *Peak* is the
growth of resident memory in MB. A ratio below 1 means icefloe is slower. Exempt are wall times of
durable local commits, which official does not sync to disk, and CPU on Spark, where Java and the
workers run too. The baseline "a function that has its batches ready" is a Spark function that
returns prebuilt batches: it shows Spark's own overhead, and icefloe should come close to it."""

CHOSEN = (
    "import, open, read one chunk of 8 MB",
    "100 small commits, local without fsync",
    "50 commits by 10 processes, rebasing, S3",
    "write 4000 x 8 KB, local without fsync",
    "read 1000 x 8 KB, S3 with 20 ms",
    "open 1,000,000 virtual refs, look one up, S3",
    "ancestry of 10,000 snapshots, local",
    "open, members of a group of 5000 arrays, S3",
    "collect 10,000 of 60,000 objects, local without fsync",
    "virtual ingest of 1,000 files; against VirtualiZarr + official, one process",
)
"""The rows that matter most to a user."""


def rendered(page: str, lines: Iterable[str]) -> str:
    """The page with these lines as its measured part; what is written by hand stays."""
    before, rest = page.split(START)
    _, after = rest.split(END)
    return "\n".join([f"{before}{START}", "", *lines, f"{END}{after}"])


def chosen_lines(results: Results) -> list[str]:
    """The rows that matter most to a user, as Markdown."""
    rows = [results.rows[key] for key in CHOSEN if key in results.rows]
    sound = [row for row in rows if not row.failed]
    return [*_about(results.about), "", _HOW, "", *table(sound)]


def measured_lines(results: Results) -> list[str]:
    """The measured part, as Markdown."""
    rows = list(results.rows.values())
    failed = [row for row in rows if row.failed]
    sound = [row for row in rows if not row.failed]
    behind = sorted((row for row in sound if row.is_behind), key=lambda row: row.least_ratio)
    missed = [row for row in sound if row.missed and row not in behind]
    lines = [*_about(results.about), "", _HOW, ""]
    if failed:
        lines += ["### Not measured", "", *(f"- {row.key}: {row.failed}" for row in failed), ""]
    lines += [f"### Rows in which icefloe is behind: {len(behind)} of {len(sound)}", ""]
    lines += table(behind) if behind else ["None.", ""]
    if missed:
        lines += ["### Ahead of the original, but below target", ""]
        lines += table(missed)
    lines += [f"![Ratios of all rows]({BARS})", ""]
    rest = [row for row in sound if row not in behind and row not in missed]
    for group in GROUPS:
        if members := [row for row in rest if row.group == group]:
            lines += [f"### {group[0].upper()}{group[1:]}", "", *table(members)]
    if results.growth:
        lines += ["### As a repository grows", "", f"![Growth]({CURVES})", ""]
        lines += growth_lines(results.growth)
    return lines


def _about(about: dict[str, str]) -> list[str]:
    return [f"- {what}: {value}" for what, value in about.items()]


def table(rows: Iterable[Row]) -> list[str]:
    """Rows as a table, with what there is to say about them below."""
    rows = list(rows)
    has_requests = any(row.ratio(row.judged, "requests") for row in rows)
    heads = ["", "wall, warm", "CPU, warm", "wall, cold", "CPU, cold", "peak"]
    heads += ["requests"] * has_requests
    heads.append("target")
    lines = [_line(heads), _line(["---", *["---:"] * (len(heads) - 2), "---"])]
    notes: dict[str, list[str]] = {}
    for row in rows:
        for note in remarks(row):
            notes.setdefault(note, []).append(row.key)
        cells = [row.key]
        cells += [_times(row, run, what) for run in (WARM, COLD) for what in ("wall", "CPU")]
        cells.append(_peak(row))
        if has_requests:
            cells.append(_requests(row))
        cells.append(_verdict(row))
        lines.append(_line(cells))
    said = [f"- {'; '.join(names)}: {note}." for note, names in notes.items()]
    return [*lines, "", *said, *([""] if said else [])]


def remarks(row: Row) -> list[str]:
    """What to know about a row: its note, the share of fsync, commits that were lost, rates."""
    other, ours = row.runs[row.judged]
    found = [row.note] if row.note else []
    if ours.fsync_seconds > 0.05 * ours.wall_seconds:
        share = ours.fsync_seconds / ours.wall_seconds
        found.append(f"fsync is {share:.0%} of the time of icefloe")
    if other.lost is not None or ours.lost is not None:
        found.append(f"commits lost in all rounds: {other.lost or 0} / {ours.lost or 0}")
    if row.amount is not None:
        rates = " / ".join(f"{row.amount / one.wall_seconds:,.1f}" for one in (other, ours))
        found.append(f"{rates} {row.unit} a second")
    return found


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _times(row: Row, run: str, what: str) -> str:
    ratio = row.ratio(run, what)
    if ratio is None:
        return "-"
    field = "wall_seconds" if what == "wall" else "cpu_seconds"
    other, ours = (getattr(figures, field) for figures in row.runs[run])
    text = f"{ratio:.2f}x" if ratio < 10 else f"{ratio:.0f}x"
    return f"{_duration(other, ours)} {text if ratio >= 1 else f'**{text}**'}"


def _duration(*seconds: float) -> str:
    """Both in the unit of the larger one."""
    units = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
    fitting = [unit for unit, size in units.items() if max(seconds) >= size]
    unit = fitting[0] if fitting else "us"
    return f"{' / '.join(_digits(one / units[unit]) for one in seconds)} {unit}"


def _digits(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"


def _peak(row: Row) -> str:
    sides: tuple[Figures, ...] = row.runs[row.judged]
    if any(one.peak_bytes is None for one in sides):
        return "-"
    return " / ".join(f"{(one.peak_bytes or 0) / 1e6:.0f}" for one in sides)


def _requests(row: Row) -> str:
    if row.ratio(row.judged, "requests") is None:
        return "-"
    return " / ".join(str(one.requests) for one in row.runs[row.judged])


def _verdict(row: Row) -> str:
    beyond = [f"{what} {least:g}x" for what, least in row.targets.items() if least != 1]
    missed = [f"**{text} missed**" for text in row.missed]
    return ", ".join([*(text for text in beyond if text not in row.missed), *missed])
