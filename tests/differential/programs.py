"""Programs for two sessions of one repository, made up from a seed.

A program is plain data. Its steps do not depend on each other: what a step needs to know about
the state it finds, such as the rank of an array, is looked up when it runs (`side.py`). So any
steps can be left out of a program, and it is a program still.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.differential import documents

PATHS = ["a", "b", "g", "g/x", "g/h", "g/h/y", "g/c", "n", "n/m"]
NAMES = ["a", "x", "m", "moved"]
BRANCHES = ["main", "main", "main", "main", "other", "third"]
TAGS = ["v1", "v2"]
SOLVERS = ["detector", "chunks fail", "deletes fail", "ours", "theirs"]
"""Names in `tests.oracle.conflict_cases.solvers`."""
LENGTHS = [0, 1, 7, 8, 9, 40, 600]
"""Of chunks, in bytes: around the limits of `Settings`."""
SOURCE_BYTES = 1000
"""Of the file that virtual chunks lie in."""


PLAIN: dict[str, Any] = {"solver": None, "metadata": None, "empty": False}
"""Arguments of a commit without anything special."""
Where = str | int
"""A path, or a number: so many nodes of the wanted kind after the first one there is."""


class Settings(NamedTuple):
    """How a repository is opened. The last two are only in icefloe."""

    inline_bytes: int | None = None
    split: str = "none"
    updates_per_file: int | None = None
    packing: bool = False
    refs_per_manifest: int | None = None


class Step(NamedTuple):
    """A method of `side.Side` and its arguments."""

    name: str
    arguments: dict[str, Any]


class Program(NamedTuple):
    """What is run on both libraries."""

    spec: int
    settings: Settings
    steps: list[Step]


def settings(drawn: random.Random) -> Settings:
    return Settings(
        inline_bytes=drawn.choice([None, 0, 8, 8, 100]),
        split=drawn.choice(["none", "one", "two", "named"]),
        updates_per_file=drawn.choice([None, 2, 5]),
        packing=drawn.random() < 0.4,
        refs_per_manifest=drawn.choice([None, None, 0, 1, 3]),
    )


def generate(seed: int, num_steps: int = 60) -> Program:
    """The program of a seed."""
    drawn = random.Random(seed)
    maker = _Maker(drawn, spec=drawn.choice([1, 2, 2]))
    first = settings(drawn)
    maker.world()
    while len(maker.steps) < num_steps:
        maker.some()
    return Program(maker.spec, first, maker.steps)


class _Maker:
    def __init__(self, drawn: random.Random, spec: int) -> None:
        self.drawn = drawn
        self.spec = spec
        self.steps: list[Step] = []
        self.kinds: list[tuple[Callable[[int], None], int]] = [
            (self.document, 10),
            (self.change, 6),
            (self.reshape, 8),
            (self.chunk, 10),
            (self.write, 12),
            (self.virtual, 3),
            (self.delete_chunk, 4),
            (self.delete, 7),
            (self.shift, 5),
            (self.reindex, 4),
            (self.rearrange, 5 if spec > 1 else 1),
            (self.commit, 11),
            (self.amend, 6 if spec > 1 else 1),
            (self.aside, 4),
            (self.rebase, 9),
            (self.refs, 9),
            (self.reopen, 3),
            (self.collide, 10),
        ]

    def add(self, step: str, **arguments: Any) -> None:
        self.steps.append(Step(step, arguments))

    def some(self) -> None:
        makers = [maker for maker, _ in self.kinds]
        [maker] = self.drawn.choices(makers, [weight for _, weight in self.kinds])
        maker(self.drawn.randrange(2))

    def world(self) -> None:
        """A hierarchy for the two sessions to start from."""
        drawn = self.drawn
        self.add("document", session=0, path="", document=documents.group(drawn), inside=False)
        for path in drawn.sample(PATHS[:6], drawn.randint(3, 6)):
            made = documents.group if path in ("g", "g/h") else documents.array
            self.add("document", session=0, path=path, document=made(drawn), inside=False)
            self.write(0, path)
        self.add("commit", session=0, message="world", **PLAIN)
        self.add("create_branch", branch="other", snapshot=1)
        for session in range(2):
            self.add("open", session=session, branch="main", rearrange=False)

    # -- nodes

    def path(self) -> str:
        return self.drawn.choice(PATHS)

    def there(self) -> Where:
        """Mostly something that is there when the step runs."""
        return self.drawn.randrange(12) if self.drawn.random() < 0.9 else self.path()

    def document(self, session: int) -> None:
        made = documents.group if self.drawn.random() < 0.3 else documents.array
        path = "" if self.drawn.random() < 0.03 else self.path()
        inside = self.drawn.random() < 0.9
        self.add("document", session=session, path=path, document=made(self.drawn), inside=inside)

    def change(self, session: int) -> None:
        members = documents.changed(self.drawn)
        path = self.there()
        self.add("change", session=session, path=path, members=members)

    def reshape(self, session: int) -> None:
        cells = [self.drawn.randint(0, documents.MOST_CELLS + 1) for _ in range(3)]
        rest, by_zarr = self.drawn.randint(0, 2), self.drawn.random() < 0.5
        self.add(
            "reshape", session=session, path=self.there(), cells=cells, rest=rest, by_zarr=by_zarr
        )

    def delete(self, session: int) -> None:
        if self.drawn.random() < 0.03:
            self.add("clear", session=session)
        elif self.drawn.random() < 0.5:
            self.add("delete_node", session=session, path=self.there())
        else:
            below = self.drawn.choice(["", "/c", "/c/0", "/c/1", "/c/0/0", "/"])
            self.add("delete_dir", session=session, path=self.there(), below=below)

    def rearrange(self, session: int) -> None:
        """Moves, in a session of their own."""
        if self.drawn.random() < 0.9:
            self.add("open", session=session, branch=self.branch(), rearrange=True)
        for _ in range(self.drawn.randint(1, 3)):
            into = self.drawn.choice([None, 0, *range(4)])
            name = self.path() if into is None else self.drawn.choice(NAMES)
            self.add("move", session=session, source=self.there(), into=into, name=name)
        if self.drawn.random() < 0.7:
            self.commit(session)

    # -- chunks

    def index(self) -> list[int]:
        return [self.drawn.randint(0, documents.MOST_CELLS) for _ in range(3)]

    def chunk(self, session: int) -> None:
        path = self.there()
        for _ in range(self.drawn.randint(1, 3)):
            self.add(
                "chunk",
                session=session,
                path=path,
                index=self.index(),
                outside=int(self.drawn.random() < 0.1),
                length=self.drawn.choice(LENGTHS),
                byte=self.drawn.randrange(256),
            )

    def write(self, session: int, path: Where | None = None) -> None:
        bounds = [sorted(self.drawn.randint(0, 12) for _ in range(2)) for _ in range(3)]
        value = self.drawn.choice([0, 1, 5, 100])
        self.add(
            "write",
            session=session,
            path=self.there() if path is None else path,
            bounds=bounds,
            value=value,
        )

    def virtual(self, session: int) -> None:
        at = self.drawn.randrange(SOURCE_BYTES - 50)
        size = self.drawn.choice([1, 8, 50])
        self.add(
            "virtual", session=session, path=self.there(), index=self.index(), at=at, length=size
        )

    def delete_chunk(self, session: int) -> None:
        outside = int(self.drawn.random() < 0.2)
        self.add(
            "delete_chunk", session=session, path=self.there(), index=self.index(), outside=outside
        )

    def shift(self, session: int) -> None:
        offset = [self.drawn.randint(-2, 2) for _ in range(3)]
        self.add("shift", session=session, path=self.there(), offset=offset)

    def reindex(self, session: int) -> None:
        how = self.drawn.choice(["reverse", "roll", "halves", "one"])
        back = self.drawn.random() < 0.5
        self.add("reindex", session=session, path=self.there(), how=how, back=back)

    # -- transactions

    def branch(self) -> str:
        return self.drawn.choice(BRANCHES)

    def metadata(self) -> Any:
        return self.drawn.choice([None, {"n": self.drawn.randint(0, 9), "list": [1, None, "ü"]}])

    def commit(self, session: int) -> None:
        solver = self.drawn.choice([None, None, *SOLVERS])
        self.add(
            "commit",
            session=session,
            message=f"commit {len(self.steps)}",
            solver=solver,
            metadata=self.metadata(),
            empty=self.drawn.random() < 0.5,
        )
        self.renew(session)

    def amend(self, session: int) -> None:
        self.add(
            "amend",
            session=session,
            message=f"amend {len(self.steps)}",
            metadata=self.metadata(),
            empty=self.drawn.random() < 0.5,
        )
        self.renew(session)

    def aside(self, session: int) -> None:
        """What ends a transaction without touching a branch."""
        what = self.drawn.choice(["flush", "flush", "discard", "open"])
        if what == "flush":
            message = f"flush {len(self.steps)}"
            self.add("flush", session=session, message=message, metadata=self.metadata())
            self.renew(session)
        elif what == "discard":
            self.add("discard", session=session)
        else:
            self.add("open", session=session, branch=self.branch(), rearrange=False)

    def renew(self, session: int) -> None:
        if self.drawn.random() < 0.9:
            self.add("renew", session=session, branch=self.branch())

    def rebase(self, session: int) -> None:
        self.add("rebase", session=session, solver=self.drawn.choice(SOLVERS))
        if self.drawn.random() < 0.6:
            self.commit(session)

    def collide(self, session: int) -> None:
        """Both sessions do something to a node, one commits, and the other is in its way."""
        drawn, other = self.drawn, 1 - session
        if drawn.random() < 0.6:
            branch = self.branch()
            for each in range(2):
                self.add("open", session=each, branch=branch, rearrange=False)
        path = self.there()
        for each in drawn.choices([session, other], k=drawn.randint(2, 5)):
            [edit] = drawn.choices(
                [self.chunk, self.write, self.change, self.delete_chunk, self.some_edit],
                [3, 4, 2, 1, 2],
            )
            first = len(self.steps)
            edit(each)
            if drawn.random() < 0.8:  # most of the time to the same node
                self.steps[first:] = [
                    Step(step.name, {**step.arguments, "path": path}) for step in self.steps[first:]
                ]
        self.add("commit", session=other, message=f"first {len(self.steps)}", **PLAIN)
        for _ in range(drawn.randint(1, 2)):
            self.add("rebase", session=session, solver=drawn.choice(SOLVERS))
        self.commit(session)

    def some_edit(self, session: int) -> None:
        drawn = self.drawn
        edits = [self.reshape, self.shift, self.reindex, self.delete, self.virtual]
        drawn.choice(edits)(session)

    # -- the repository

    def refs(self, _: int) -> None:
        drawn = self.drawn
        snapshot = drawn.randrange(20)
        name = drawn.choice(["create_branch", "delete_branch", "reset_branch", "tag", "rewrite"])
        if name == "create_branch":
            self.add("create_branch", branch=drawn.choice(BRANCHES[3:]), snapshot=snapshot)
        elif name == "delete_branch":
            self.add("delete_branch", branch=drawn.choice(BRANCHES[3:]))
        elif name == "reset_branch":
            expected = drawn.choice([None, None, "tip", "other"])
            self.add("reset_branch", branch=self.branch(), snapshot=snapshot, expected=expected)
        elif name == "tag":
            tag, is_new = drawn.choice(TAGS), drawn.random() < 0.7
            self.add("create_tag", tag=tag, snapshot=snapshot) if is_new else self.add(
                "delete_tag", tag=tag
            )
        else:
            method = drawn.choice(["new_commit", "amend"])
            message = f"rewrite {len(self.steps)}"
            self.add("rewrite", branch=self.branch(), message=message, method=method)

    def reopen(self, _: int) -> None:
        self.add("reopen", settings=settings(self.drawn))
        for session in range(2):
            self.add("renew", session=session, branch=self.branch())
