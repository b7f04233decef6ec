"""The store semantics that icefloe shares with official icechunk, as scripts to run on both.

Every case is a list of steps on the hierarchy of `scripts.PREPARED`. Where the two libraries
are meant to differ, `DIFFERENCES` says what each gives and why.
"""

from __future__ import annotations

from typing import Any

from tests.store.scripts import GROUP, Step, array, rectilinear

EVERYTHING: Step = ("list",)

KEYS: dict[str, list[Step]] = {
    "keys that are understood": [
        ("exists", "zarr.json"),
        ("exists", "a/zarr.json"),
        ("exists", "a/c/0/0"),
        ("exists", "a/c/0/1"),
        ("exists", "g/s/c"),
        ("exists", "nothing/zarr.json"),
        ("exists", "nothing/c/0"),
        ("exists", "a/c/7/7"),
    ],
    "a chunk key below a group": [("exists", "g/c/0"), ("get", "g/c/0"), ("getsize", "g/c/0")],
    "an unknown name: get": [("get", "a/other")],
    "an unknown name: exists": [("exists", "a/other")],
    "an unknown name: getsize": [("getsize", "a/other")],
    "an unknown name: set": [("set", "a/other", b"1"), EVERYTHING],
    "an unknown name: delete": [("delete", "a/other"), EVERYTHING],
    "a name without meaning at the top": [("get", "foo"), ("exists", "foo"), ("set", "foo", b"")],
    "an empty key": [("get", ""), ("exists", ""), ("set", "", b"1"), ("delete", "")],
    "a leading slash": [("get", "/zarr.json"), ("exists", "/a/zarr.json"), ("get", "/a/c/0/0")],
    "an empty segment": [("get", "a//zarr.json"), ("exists", "a//c/0/0")],
    "a dot segment": [("get", "./zarr.json")],
    "segments of two dots": [("get", "a/../zarr.json"), ("exists", "../c/0")],
    "a trailing slash": [("get", "a/c/0/0/"), ("get", "a/")],
    "chunk numbers with separators of version 2": [("get", "a/c/0.0"), ("get", "a/0/0")],
    "chunk numbers that are none": [("get", "a/c/x/0"), ("get", "a/c/-1/0"), ("get", "a/c/1e1/0")],
    "chunk numbers beyond 32 bits": [("get", "a/c/4294967296/0"), ("get", "a/c/4294967295/0")],
    "chunk numbers with zeros in front": [("get", "a/c/00/0")],
    "a chunk key cut short": [("get", "a/c"), ("exists", "a/c/0"), ("getsize", "a/c/0")],
    "a name that ends in c": [("get", "abc"), ("exists", "abc")],
    "an array called c": [
        ("set", "g/c/zarr.json", array([2], [1])),
        ("set", "g/c/c/1", b"one"),
        ("get", "g/c/c/1"),
        ("exists", "g/c/c/0"),
        ("list_dir", "g/c"),
        ("list_prefix", "g/c"),
    ],
    "documents of version 2: get": [
        ("get", ".zgroup"),
        ("get", "a/.zarray"),
        ("get", "a/.zattrs"),
        ("get", "g/.zmetadata"),
    ],
    "documents of version 2: set": [("set", ".zgroup", b"{}"), ("set", "a/.zarray", b"{}")],
    "documents of version 2: delete": [("delete", ".zgroup"), ("delete", "a/.zattrs"), EVERYTHING],
    "documents of version 2: exists": [("exists", ".zgroup"), ("exists", "a/.zarray")],
    "documents of version 2: getsize": [("getsize", ".zgroup")],
}

METADATA: dict[str, list[Step]] = {
    "the least that is accepted": [
        ("set", "n/zarr.json", GROUP),
        ("set", "n/m/zarr.json", array([3], [2])),
        ("get", "n/m/zarr.json"),
    ],
    "bytes come back as they went in": [
        (
            "set",
            "n/zarr.json",
            b' {"node_type" :\t"group", "attributes": {"z": 1, "a": "\xc3\xa4"}}\n',
        ),
        ("get", "n/zarr.json"),
        ("getsize", "n/zarr.json"),
    ],
    "not JSON": [("set", "n/zarr.json", b"{"), ("set", "n/zarr.json", b""), EVERYTHING],
    "bytes that are no UTF-8": [("set", "n/zarr.json", b'{"node_type":"group","x":"\xff"}')],
    "JSON that is no object": [("set", "n/zarr.json", b"[]"), ("set", "n/zarr.json", b"null")],
    "no node type": [("set", "n/zarr.json", b"{}"), ("set", "n/zarr.json", b'{"node_type":1}')],
    "another node type": [("set", "n/zarr.json", b'{"node_type":"table"}')],
    "an array without shape": [
        ("set", "n/zarr.json", b'{"node_type":"array"}'),
        ("set", "n/zarr.json", b'{"node_type":"array","shape":[1]}'),
    ],
    "shapes that are none": [
        ("set", "n/zarr.json", array([1], [1], shape=None)),
        ("set", "n/zarr.json", array([1], [1], shape=4)),
        ("set", "n/zarr.json", array([1], [1], shape=["1"])),
        ("set", "n/zarr.json", array([1], [1], shape=[1.5])),
        ("set", "n/zarr.json", array([-1], [1])),
        ("set", "n/zarr.json", array([1], [-1])),
    ],
    "an unknown grid": [
        ("set", "n/zarr.json", array([1], [1], chunk_grid={"name": "x", "configuration": {}})),
        ("set", "n/zarr.json", array([1], [1], chunk_grid={"name": "regular"})),
        ("set", "n/zarr.json", array([1], [1], chunk_grid="regular")),
        ("set", "n/zarr.json", array([1], [1], chunk_grid=None)),
    ],
    "fewer dimensions in the grid than in the shape": [
        ("set", "n/zarr.json", array([4, 4], [2])),
        EVERYTHING,
    ],
    "more dimensions in the grid than in the shape": [
        ("set", "n/zarr.json", array([4], [2, 2])),
        EVERYTHING,
    ],
    "dimension names": [
        ("set", "n/zarr.json", array([4, 4], [2, 2], dimension_names=["x", None])),
        ("set", "m/zarr.json", array([4, 4], [2, 2], dimension_names=None)),
    ],
    "dimension names that are none": [
        ("set", "n/zarr.json", array([4], [2], dimension_names="x")),
        ("set", "n/zarr.json", array([4], [2], dimension_names=[1])),
    ],
    "more names than dimensions": [
        ("set", "n/zarr.json", array([4], [2], dimension_names=["x", "y"]))
    ],
    "a chunk size of zero": [
        ("set", "n/zarr.json", array([4], [0])),
        ("set", "n/c/0", b"1"),
        ("set", "n/c/1", b"1"),
        ("get", "n/c/0"),
    ],
    "an array becomes a group": [("set", "a/zarr.json", GROUP), ("get", "a/zarr.json")],
    "a group becomes an array": [("set", "g/zarr.json", array([1], [1])), EVERYTHING],
    "an array becomes a group after a delete": [
        ("delete", "a/zarr.json"),
        ("set", "a/zarr.json", GROUP),
        ("get", "a/zarr.json"),
        ("list_prefix", "a"),
    ],
    "an array is made again, without its chunks": [
        ("delete", "a/zarr.json"),
        ("set", "a/zarr.json", array([4, 6], [2, 3])),
        ("get", "a/c/0/0"),
        ("list_prefix", "a"),
    ],
    "children without parents, and children of arrays": [
        ("set", "x/y/z/zarr.json", GROUP),
        ("exists", "x/y/zarr.json"),
        ("set", "a/child/zarr.json", GROUP),
        ("exists", "a/child/zarr.json"),
    ],
    "an array shrinks and grows again": [
        ("set", "a/zarr.json", array([2, 3], [2, 3])),
        ("get", "a/c/1/1"),
        ("exists", "a/c/1/1"),
        ("list_prefix", "a"),
        ("set", "a/zarr.json", array([4, 6], [2, 3])),
        ("get", "a/c/0/0"),
    ],
}

RECTILINEAR: dict[str, list[Step]] = {
    "a rectilinear grid": [
        ("set", "n/zarr.json", rectilinear([6, 4], [[1, 2, 3], [[2, 2]]])),
        ("set", "n/c/2/1", b"corner"),
        ("get", "n/c/2/1"),
        ("set", "n/c/3/0", b"outside"),
        ("set", "n/c/0/2", b"outside"),
    ],
    "a rectilinear grid of another rank": [("set", "n/zarr.json", rectilinear([6, 6], [[3, 3]]))],
    "a rectilinear grid that does not add up": [("set", "n/zarr.json", rectilinear([7], [[3, 3]]))],
    "a rectilinear grid of nonsense": [("set", "n/zarr.json", rectilinear([6], [["3", 3]]))],
}

CHUNKS: dict[str, list[Step]] = {
    "a chunk is overwritten": [
        ("set", "a/c/0/0", b"new"),
        ("get", "a/c/0/0"),
        ("getsize", "a/c/0/0"),
    ],
    "a native chunk becomes inline": [("set", "a/c/1/1", b"new"), ("get", "a/c/1/1")],
    "chunks of no bytes": [("set", "a/c/0/1", b""), ("exists", "a/c/0/1"), ("set", "g/s/c", b"")],
    "chunks outside of the grid": [
        ("set", "a/c/2/0", b"1"),
        ("set", "a/c/0/2", b"1"),
        ("set", "g/e/c/1/0", b"1"),
        EVERYTHING,
    ],
    "a place in a dimension without chunks": [
        ("set", "g/e/c/0/0", b"1"),
        ("set", "g/e/c/0/1", b"1"),
    ],
    "too few chunk numbers": [("set", "a/c/0", b"1")],
    "too many chunk numbers": [("set", "a/c/0/0/0", b"1")],
    "chunk numbers for a scalar": [("set", "g/s/c/0", b"1")],
    "no chunk numbers for an array": [("set", "a/c", b"1")],
    "chunks of nothing": [
        ("set", "nothing/c/0", b"1"),
        ("set", "g/c/0", b"1"),
        ("set", "c/0", b"1"),
    ],
    "set if not exists": [
        ("set_if_not_exists", "a/c/0/0", b"new"),
        ("get", "a/c/0/0"),
        ("set_if_not_exists", "a/c/0/1", b"new"),
        ("get", "a/c/0/1"),
        ("set_if_not_exists", "g/zarr.json", b'{"node_type":"group","attributes":{}}'),
        ("get", "g/zarr.json"),
        ("set_if_not_exists", "n/zarr.json", GROUP),
        ("get", "n/zarr.json"),
    ],
    "set if not exists, of nonsense": [
        ("set_if_not_exists", "nothing/c/0", b"new"),
        ("set_if_not_exists", "other", b"new"),
        ("set_if_not_exists", "n/zarr.json", b"{}"),
    ],
    "parts of values": [("set_partial_values", [("a/c/0/0", 0, b"1")])],
    "what a store can do": [
        ("__getattribute__", name)
        for name in (
            "supports_writes",
            "supports_deletes",
            "supports_listing",
            "supports_partial_writes",
            "supports_consolidated_metadata",
            "read_only",
        )
    ],
}

READS: dict[str, list[Step]] = {
    "chunks that are not there": [
        ("get", "a/c/0/1"),
        ("get", "a/c/9/9"),
        ("get", "nothing/c/0"),
        ("get", "nothing/zarr.json"),
    ],
    "ranges of an inline chunk": [
        ("get", "a/c/0/0", 2, 5),
        ("get", "a/c/0/0", 0, 8),
        ("get", "a/c/0/0", "offset", 6),
        ("get", "a/c/0/0", "suffix", 3),
        ("get", "a/c/0/0", "suffix", 8),
    ],
    "ranges of a native chunk": [
        ("get", "a/c/1/1", 2, 5),
        ("get", "a/c/1/1", "offset", 598),
        ("get", "a/c/1/1", "suffix", 3),
    ],
    "ranges of metadata": [("get", "g/zarr.json", 2, 5), ("get", "g/zarr.json", "offset", 10)],
    "the end of metadata": [("get", "g/zarr.json", "suffix", 3)],
    "a range past the end of a chunk": [("get", "a/c/0/0", 2, 50)],
    "a range past the end of a native chunk": [("get", "a/c/1/1", 590, 650)],
    "a range past the end of metadata": [("get", "g/zarr.json", 2, 5000)],
    "a range behind the end": [("get", "a/c/0/0", 8, 9)],
    "an offset behind the end": [("get", "a/c/0/0", "offset", 8)],
    "a suffix longer than the value": [("get", "a/c/0/0", "suffix", 9)],
    "an empty range": [("get", "a/c/0/0", 2, 2)],
    "ranges of what is not there": [("get", "a/c/0/1", 0, 2), ("get", "nothing/zarr.json", 0, 2)],
    "several values": [
        ("get_partial_values", ("a/c/0/0", 0, 2), ("a/c/1/1", "suffix", 1), ("g/s/c",)),
        ("get_partial_values",),
    ],
    "several values, one missing": [("get_partial_values", ("a/c/0/0",), ("a/c/0/1",))],
    "sizes": [
        ("getsize", "a/c/0/0"),
        ("getsize", "a/c/1/1"),
        ("getsize", "a/c/0/1"),
        ("getsize", "a/zarr.json"),
        ("getsize", "nothing/zarr.json"),
        ("getsize", "nothing/c/0"),
    ],
    "sizes below a prefix": [
        ("getsize_prefix", ""),
        ("getsize_prefix", "/"),
        ("getsize_prefix", "a"),
        ("getsize_prefix", "a/"),
        ("getsize_prefix", "g"),
    ],
    "sizes below a prefix that is none": [("getsize_prefix", "nothing"), ("getsize_prefix", "a/c")],
    "the size below a path without a node": [("getsize_prefix", "lone")],
}

LISTS: dict[str, list[Step]] = {
    "everything": [EVERYTHING, ("list_prefix", ""), ("list_prefix", "/")],
    "below a node": [
        ("list_prefix", "a"),
        ("list_prefix", "a/"),
        ("list_prefix", "g"),
        ("list_prefix", "g/s"),
        ("list_prefix", "g/e"),
    ],
    "below a prefix that is no node": [
        ("list_prefix", "nothing"),
        ("list_prefix", "ab"),
        ("list_prefix", "a/c"),
        ("list_prefix", "a/c/0"),
    ],
    "below a path without a node": [("list_prefix", "lone")],
    "a prefix with a leading slash": [("list_prefix", "/a"), ("list_dir", "/g"), ("list_dir", "/")],
    "a leading slash before an array": [("list_dir", "/a")],
    "names in a group": [("list_dir", ""), ("list_dir", "g"), ("list_dir", "g/")],
    "names in an array": [
        ("list_dir", "a"),
        ("list_dir", "g/s"),
        ("list_dir", "g/e"),
        ("list_dir", "a/"),
    ],
    "names below an array": [
        ("list_dir", "a/c"),
        ("list_dir", "a/c/"),
        ("list_dir", "a/c/0"),
        ("list_dir", "a/c/1"),
        ("list_dir", "a/c/7"),
        ("list_dir", "a/c/0/0"),
        ("list_dir", "g/s/c"),
        ("list_dir", "g/e/c"),
        ("list_dir", "a/x"),
        ("list_dir", "a/c/x"),
    ],
    "names in nothing": [("list_dir", "nothing"), ("list_dir", "a/zarr.json")],
    "names in a path without a node": [("list_dir", "lone"), ("list_dir", "lone/deep")],
    "emptiness": [
        ("is_empty", ""),
        ("is_empty", "/"),
        ("is_empty", "a"),
        ("is_empty", "g/"),
        ("is_empty", "g/e/c"),
        ("is_empty", "nothing"),
        ("is_empty", "ab"),
    ],
}

DELETES: dict[str, list[Step]] = {
    "a chunk": [("delete", "a/c/0/0"), ("exists", "a/c/0/0"), ("get", "a/c/0/0"), EVERYTHING],
    "a chunk twice": [("delete", "a/c/0/0"), ("delete", "a/c/0/0"), EVERYTHING],
    "an array": [("delete", "a/zarr.json"), ("get", "a/c/0/0"), ("exists", "a/c/0/0"), EVERYTHING],
    "a group with what is in it": [
        ("delete", "g/zarr.json"),
        ("exists", "g/s/zarr.json"),
        EVERYTHING,
    ],
    "the root": [("delete", "zarr.json"), EVERYTHING, ("is_empty", "")],
    "what is not there": [
        ("delete", "nothing/zarr.json"),
        ("delete", "nothing/c/0"),
        ("delete", "g/c/0"),
        ("delete", "a/c/9/9"),
        EVERYTHING,
    ],
    "a chunk of another rank": [("delete", "a/c/0"), ("delete", "a/c/0/0/0"), EVERYTHING],
    "a folder that is an array": [("delete_dir", "a"), EVERYTHING],
    "a folder that is a group": [("delete_dir", "g/"), EVERYTHING],
    "a folder of chunks": [("delete_dir", "a/c/0"), EVERYTHING],
    "all chunks": [("delete_dir", "a/c"), EVERYTHING, ("list_dir", "a")],
    "all chunks, with a slash": [("delete_dir", "a/c/"), EVERYTHING],
    "a folder that is one chunk": [("delete_dir", "a/c/1/1"), EVERYTHING],
    "the chunk of a scalar": [("delete_dir", "g/s/c"), EVERYTHING],
    "a folder that is not there": [
        ("delete_dir", "nothing"),
        ("delete_dir", "a/x"),
        ("delete_dir", "a/c/9"),
        ("delete_dir", "ab"),
        EVERYTHING,
    ],
    "a folder without a node": [("delete_dir", "lone"), EVERYTHING],
    "a node that is missing above others": [
        ("set", "no/node/zarr.json", GROUP),
        ("set", "no/node/x/zarr.json", array([2], [1])),
        ("delete", "no/zarr.json"),
        ("delete_dir", "no"),
        EVERYTHING,
    ],
    "the root after it is gone": [
        ("delete", "zarr.json"),
        ("set", "late/zarr.json", GROUP),
        ("delete", "zarr.json"),
        EVERYTHING,
    ],
    "an array with nodes below it": [
        ("set", "a/below/zarr.json", GROUP),
        ("set", "a/below/x/zarr.json", array([2], [1])),
        ("delete", "a/zarr.json"),
        EVERYTHING,
    ],
    "the folder of an array with nodes below it": [
        ("set", "a/below/zarr.json", array([2], [1])),
        ("set", "a/below/c/0", b"x"),
        ("delete_dir", "a"),
        EVERYTHING,
        ("get", "a/below/c/0"),
    ],
    "the folder of everything": [("delete_dir", ""), EVERYTHING],
    "clear": [("clear",), EVERYTHING, ("is_empty", ""), ("list_dir", "")],
    "clear and make again": [("clear",), ("set", "zarr.json", GROUP), EVERYTHING],
}

READ_ONLY: dict[str, list[Step]] = {
    "a read-only store": [
        ("set_on_read_only", "a/c/0/0", b"1"),
        ("set_on_read_only", "nonsense", b"1"),
        ("delete_on_read_only", "a/c/0/0"),
        EVERYTHING,
    ],
}

CASES: dict[str, list[Step]] = {
    f"{topic}: {name}": steps
    for topic, cases in {
        "keys": KEYS,
        "metadata": METADATA,
        "rectilinear": RECTILINEAR,
        "chunks": CHUNKS,
        "reads": READS,
        "lists": LISTS,
        "deletes": DELETES,
        "read-only": READ_ONLY,
    }.items()
    for name, steps in cases.items()
}

INVALID_KEY = "InvalidInputError invalid-key"
OUTSIDE = "InvalidInputError invalid-byte-range"
WRONG_RANK = "InvalidInputError invalid-chunk-index"
BAD_METADATA = "InvalidInputError bad-metadata"
READ_ONLY_STORE = "ReadOnlyError read-only-store"
ALL = [
    *("a/c/0/0", "a/c/1/1", "a/zarr.json", "abc/zarr.json", "g/e/zarr.json", "g/s/c"),
    *("g/s/zarr.json", "g/zarr.json", "lone/deep/zarr.json", "zarr.json"),
]
A_JSON = array([4, 6], [2, 3])

CLAMPED = "ranges end where the value ends, as in zarr's own stores"
ONE_RANK = "a chunk under a wrong number of indices could never be read again"
CANONICAL = "keys are canonical: official finds such nodes until the commit, and loses them then"

Difference = tuple[list[Any], tuple[list[Any], ...], str]
"""What icefloe gives, what official gives (it may depend on what is committed), and why."""
DIFFERENCES: dict[str, Difference] = {
    "keys: a leading slash": (
        [GROUP, INVALID_KEY, INVALID_KEY],
        ([GROUP, True, b"12345678"], [GROUP, False, None]),
        CANONICAL,
    ),
    "keys: an empty segment": (
        [INVALID_KEY, INVALID_KEY],
        ([A_JSON, True], [None, False]),
        CANONICAL,
    ),
    "keys: a dot segment": ([INVALID_KEY], ([GROUP], [None]), CANONICAL),
    "keys: a name that ends in c": (
        [INVALID_KEY, INVALID_KEY],
        ([None, False],),
        "official cuts a key at its last letter c, wherever that is",
    ),
    "metadata: bytes that are no UTF-8": (
        [BAD_METADATA],
        ([None],),
        "JSON is UTF-8; no Zarr library could open the node",
    ),
    "metadata: more dimensions in the grid than in the shape": (
        [BAD_METADATA, ALL],
        ([None, sorted([*ALL, "n/zarr.json"])],),
        "the ranks have to agree; official only notices when the grid has too few",
    ),
    "metadata: more names than dimensions": (
        [BAD_METADATA],
        ([None],),
        "a snapshot stores one name for each dimension",
    ),
    "metadata: an array shrinks and grows again": (
        [None, None, False, ["a/c/0/0", "a/zarr.json"], None, b"12345678"],
        ([None, None, False, ["a/c/0/0", "a/c/1/1", "a/zarr.json"], None, b"12345678"],),
        "a key that cannot be read is not listed either",
    ),
    "chunks: too few chunk numbers": ([WRONG_RANK], ([None],), ONE_RANK),
    "chunks: too many chunk numbers": ([WRONG_RANK], ([None],), ONE_RANK),
    "chunks: chunk numbers for a scalar": ([WRONG_RANK], ([None],), ONE_RANK),
    "chunks: no chunk numbers for an array": ([WRONG_RANK], ([None],), ONE_RANK),
    "reads: the end of metadata": (
        [b'p"}'],
        ([b'{"node_type":"grou'],),
        "a suffix is the last bytes, official leaves them out",
    ),
    "reads: a range past the end of a chunk": ([b"345678"], ([OUTSIDE],), CLAMPED),
    "reads: a range past the end of a native chunk": ([b"x" * 10], ([OUTSIDE],), CLAMPED),
    "reads: a range past the end of metadata": (
        [b'node_type":"group"}'],
        (["RustPanic"], ["PanicException"]),
        CLAMPED,
    ),
    "reads: a range behind the end": ([b""], ([OUTSIDE],), CLAMPED),
    "reads: an offset behind the end": ([b""], ([OUTSIDE],), CLAMPED),
    "reads: a suffix longer than the value": ([b"12345678"], ([OUTSIDE],), CLAMPED),
    "reads: several values, one missing": (
        [[b"12345678", None]],
        (["TypeError"],),
        "a missing value is None, as zarr asks for",
    ),
    "lists: a leading slash before an array": (
        [[]],
        ([["c", "zarr.json"]],),
        "no key starts with a slash; official agrees about groups",
    ),
    "read-only: a read-only store": (
        [READ_ONLY_STORE, READ_ONLY_STORE, READ_ONLY_STORE, ALL],
        ([None, INVALID_KEY, None, [key for key in ALL if key != "a/c/0/0"]],),
        "a store made read-only refuses writes; official's writes to it all the same",
    ),
}
