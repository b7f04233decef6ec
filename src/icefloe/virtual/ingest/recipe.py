"""Recipes: an ingest written down in YAML, with the names of the arguments of `ingest`.

sources: s3://bucket/2024/*.nc
repository: s3://bucket/repository
concat_dim: time
append: true
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.virtual.ingest.fields import FIELDS, check_fields


def load_recipe(recipe: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a recipe, from a file or from its text, and check it: the arguments of `ingest`.

    Text that has a line break or `: ` in it is a recipe itself, any other is the path of one.

    Args:
        recipe: the path of a YAML file, or its text.

    Raises:
        InvalidInputError: it is not there, is not YAML, or says something that cannot be; the
            message names the field and what is expected.
    """
    text, where = _text_of(recipe)
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise InvalidInputError(f"{where}it is not YAML: {reason}") from error
    if not isinstance(found, dict):
        raise InvalidInputError(
            f"{where}it is a {type(found).__name__}, expected names and values such as "
            "'sources: data/*.nc'"
        )
    check_fields(found, where)
    missing = [name for name, field in FIELDS.items() if field.is_required and name not in found]
    if missing:
        raise InvalidInputError(
            f"{where}{', '.join(missing)} is missing, expected "
            + "; ".join(f"{name}: {FIELDS[name].expected}" for name in missing)
        )
    return found


def _text_of(recipe: Any) -> tuple[str, str]:
    """The text of a recipe, and how messages about it begin."""
    if isinstance(recipe, str) and ("\n" in recipe or ": " in recipe):
        return recipe, "recipe: "
    if not isinstance(recipe, str | os.PathLike) or not os.fspath(recipe):
        raise InvalidInputError(f"recipe is {recipe!r:.80}, expected the path of a file, or YAML")
    path = Path(recipe)
    try:
        return path.read_text(encoding="utf-8"), f"recipe {path}: "
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"recipe {path}: it is not text: {error}") from error
    except OSError as error:
        kind = ErrorKind.OBJECT_NOT_FOUND if isinstance(error, FileNotFoundError) else ErrorKind.IO
        reason = error.strerror or error
        raise InvalidInputError(f"recipe {path}: cannot be read: {reason}", kind) from error
