"""The list of commands that `icefloe --help` shows, by what they are for.

It is text, so that help does not import the modules of all commands.
"""

from __future__ import annotations

SECTIONS: dict[str, dict[str, str]] = {
    "Begin": {
        "init": "Create an empty repository.",
        "import": "Make a repository of a Zarr store or of files.",
        "ingest": "Bring files or Zarr stores into a group.",
        "clone": "Copy a repository with its history.",
    },
    "Look": {
        "info": "Version, branches, tags, newest snapshot.",
        "log": "Snapshots, newest first; --graph draws all branches.",
        "show": "One snapshot, and what it changed.",
        "diff": "What changed between two versions.",
        "tree": "Groups and arrays.",
        "chunks": "The chunks of an array, and where they are.",
        "sql": "A question in SQL about arrays and metadata.",
        "stats": "Bytes of arrays and snapshots.",
        "ops": "Operations on the repository.",
        "inspect": "What is in a metadata file.",
        "ui": "Look at a repository in a browser.",
    },
    "Search": {
        "blame": "Which commit last wrote a node or chunk.",
        "bisect": "Which commit changed the outcome of a test.",
    },
    "Change": {
        "branch": "List, create and delete branches.",
        "tag": "List, create and delete tags.",
        "reset": "Point a branch at another snapshot.",
        "cherry-pick": "Apply the changes of one commit to a branch.",
        "merge": "Apply what another branch has to a branch.",
        "squash": "Replace several commits with one.",
        "undo": "Undo a commit by a new commit.",
        "config": "The saved configuration; names for repositories.",
        "metadata": "Metadata of the repository itself.",
        "status": "Whether the repository takes writes.",
    },
    "Copy": {
        "export": "One version as plain Zarr or Parquet.",
        "materialize": "Copy virtual chunks into the repository.",
        "migrate": "A repository of an older version becomes a current one.",
    },
    "Keep healthy": {
        "expire": "Remove old snapshots from the history.",
        "gc": "Delete objects that nothing leads to.",
        "verify": "Check that all files are there and fit together.",
        "repair": "Drop references that lead nowhere; rescue lost refs.",
        "rewrite-manifests": "Write the manifests of a branch anew.",
    },
    "Others": {
        "completion": "Completion for bash, zsh and fish.",
        "repo": "`repo create`, as the original spells it.",
        "ancestry": "`log`, as the original spells it.",
    },
}
