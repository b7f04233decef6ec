"""What icefloe notes in the metadata of commits, under the key `__icefloe`.

A commit that merges another line names it. One that replaces others in a squash names the newest of
them, and a commit that a squash writes again names the old one: both have the same content. Ids of
all snapshots that came along are listed, because the named ones may expire.

A snapshot whose ancestors expired may list what these had noted. In spec version 1 it also lists
them, if rules decided that only icefloe has; version 2 has a field for that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from icefloe.format.snapshot_table import SnapshotInfo
from icefloe.ids import SnapshotId

NOTES = "__icefloe"
SQUASHED = "squashed"
REWRITTEN = "rewritten"
"""Keys of the notes that name an older snapshot with the same content."""
DERIVED = "icefloe.derived"
"""Key of a commit's metadata for the lineage of computed data; the notes have another."""
_MERGED = "merged"
_CONTAINS = "contains"
"""All snapshots that the commit contains and its parent does not, but for the commit itself."""
_EXPIRED = "expired"
"""Of a snapshot whose ancestors expired: the parent that it got, the ancestors, oldest first (spec
version 1 only), the snapshots that they had noted, and whether those are all."""


def notes_of(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """The notes in the metadata of a commit."""
    notes = metadata.get(NOTES)
    return notes if isinstance(notes, Mapping) else {}


def merge_notes(merged: Iterable[str], contained: Iterable[SnapshotId] | None) -> dict[str, Any]:
    """The notes of a merge. `contained` is None if not all that came along is known."""
    named = set(merged)
    notes = {_MERGED: sorted(named)} if named else {}
    if contained is None:
        return notes
    return {**notes, _CONTAINS: sorted({key.text for key in contained} - named)}


def merged_into(notes: Mapping[str, Any]) -> list[str]:
    """The snapshots that a commit names, besides its parent."""
    same = [each for each in (notes.get(SQUASHED), notes.get(REWRITTEN)) if isinstance(each, str)]
    return [*_texts(notes.get(_MERGED)), *same]


def contained_in(notes: Mapping[str, Any]) -> list[str]:
    """All snapshots that the notes of a commit name or list."""
    expired = notes.get(_EXPIRED)
    carried = _texts(expired.get(_CONTAINS)) if isinstance(expired, Mapping) else []
    return [*merged_into(notes), *_texts(notes.get(_CONTAINS)), *carried]


def is_whole(notes: Mapping[str, Any]) -> bool:
    """Whether the notes list everything that is in the snapshots they name.

    What a rewritten snapshot contained is noted by the ancestors of the one that replaced it.
    """
    return _CONTAINS in notes or not notes.keys() & {_MERGED, SQUASHED}


def expired_note(
    info: SnapshotInfo,
    since: SnapshotId,
    between: Sequence[SnapshotInfo],
    snapshots: Iterable[SnapshotId] = (),
) -> dict[str, Any]:
    """The note of a snapshot that gets the parent `since`, because those in between expired."""
    contained = {text for expired in between for text in contained_in(notes_of(expired.metadata))}
    contained |= set(_texts(_expired(info).get(_CONTAINS)))
    return {
        "since": since.text,
        "snapshots": [key.text for key in snapshots],
        _CONTAINS: sorted(contained),
        "whole": accounts_for_expired(info)
        and all(accounts_for_expired(one) and is_whole(notes_of(one.metadata)) for one in between),
    }


def with_expired(metadata: Mapping[str, Any], note: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata with the note of `expired_note`."""
    return {**metadata, NOTES: {**notes_of(metadata), _EXPIRED: dict(note)}}


def moved_expired(
    info: SnapshotInfo, metadata: Mapping[str, Any], since: SnapshotId
) -> dict[str, Any]:
    """Metadata of a snapshot that replaces another one, on the parent `since`.

    What the old one noted of its expired ancestors is true of the new one.
    """
    note = _expired(info)
    rest = without_expired(metadata)
    return with_expired(rest, {**note, "since": since.text}) if note else rest


def without_expired(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata as the commit had it, without the note of `expired_note`."""
    if _EXPIRED not in notes_of(metadata):
        return dict(metadata)
    notes = {name: value for name, value in notes_of(metadata).items() if name != _EXPIRED}
    rest = {name: value for name, value in metadata.items() if name != NOTES}
    return {**rest, NOTES: notes} if notes else rest


def expired_before(info: SnapshotInfo) -> tuple[SnapshotId, ...]:
    """The expired snapshots between one of spec version 1 and its parent, as far as noted."""
    expired = _expired(info)
    return tuple(map(SnapshotId.parse, _texts(expired.get("snapshots"))))


def accounts_for_expired(info: SnapshotInfo) -> bool:
    """Whether all is known that the expired snapshots between a snapshot and its parent merged."""
    return not info.pruned_ancestor_tx_logs or bool(_expired(info).get("whole"))


def _expired(info: SnapshotInfo) -> Mapping[str, Any]:
    expired = notes_of(info.metadata).get(_EXPIRED)
    # Official Icechunk may have cut the history again since, which it does not note.
    if not isinstance(expired, Mapping) or info.parent_id is None:
        return {}
    return expired if expired.get("since") == info.parent_id.text else {}


def _texts(found: Any) -> list[str]:
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []
