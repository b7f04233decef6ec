"""Errors of the object store client as ours: they name the object and storage, and no secrets."""

from __future__ import annotations

import re

from obstore import exceptions as obstore

from icefloe.errors import ErrorKind, StorageError
from icefloe.storage.driver import ConditionFailed
from icefloe.storage.keys import object_not_found

ClientError = (obstore.BaseError, OSError, ValueError)
"""What obstore raises: its own tree, FileNotFoundError, and ValueError for paths and ranges."""

_SIGNED = re.compile(r"\?[^\s\"'<>]*")
_ANSWER = re.compile(r"<Code>([^<]*)</Code>(?:.*?<Message>([^<]*)</Message>)?", re.DOTALL)
_THROTTLED = re.compile(r"status code: (429|503)|SlowDown|TooManyRequests|ServerBusy")
_UNSATISFIABLE = re.compile(r"status code: 416|InvalidRange")
_NO_ANSWER = "Error performing"  # how the client begins once it has given up on a request
_CUT = re.compile("response body|invalid list response")
_NOT_SENT = re.compile(r"kind: Connect\b")
_NO_KEYS = re.compile(r"/latest/(api/token|meta-data/iam)")  # the last resort: the machine's role
_NO_BUCKET = re.compile("NoSuchBucket|ContainerNotFound|bucket does not exist")

DEFINITE = (
    obstore.PermissionDeniedError,
    obstore.UnauthenticatedError,
    obstore.NotSupportedError,
    obstore.InvalidPathError,
    obstore.UnknownConfigurationKeyError,
    ValueError,
)
"""After these the request has certainly not been carried out."""


NO_AWS_KEYS = (
    "no AWS credentials were found; set AWS_PROFILE or AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY, pass access_key_id=... and secret_access_key=..., or "
    "anonymous=True for a public bucket"
)


class RequestRefused(StorageError):  # noqa: N818 - a StorageError to callers; the name tells us more
    """A StorageError after which nothing can have been written."""


class BucketMissing(RequestRefused):
    """There is no such bucket or container."""

    is_bucket_missing = True


class RequestNotSent(StorageError):  # noqa: N818 - see above
    """There was no connection: the server has not seen the request."""


class RangeNotSatisfiable(StorageError):  # noqa: N818 - see above
    """The object ends before the wanted range starts."""


def condition_failed(error: Exception) -> bool:
    """Whether a conditional request was answered with no."""
    return isinstance(
        error, obstore.AlreadyExistsError | obstore.PreconditionError | obstore.NotModifiedError
    )


def lacks_ranges(error: Exception) -> bool:
    """Whether a server has answered a request for part of an object with all of it."""
    return isinstance(error, obstore.NotSupportedError)


def broke_off(error: Exception) -> bool:
    """Whether an answer arrived that could not be used, for example because it was cut short."""
    return isinstance(error, obstore.GenericError) and _NO_ANSWER not in str(error)


def was_cut(error: Exception) -> bool:
    """Whether an answer broke off, whatever it was an answer to."""
    text = str(error)
    # A large object may be complete although the answer broke off. The client then finds no upload
    # to give up.
    is_upload_gone = isinstance(error, FileNotFoundError) and "uploadId=" in text
    return is_upload_gone or _CUT.search(text) is not None


def translated(
    error: Exception, action: str, key: str, location: str
) -> StorageError | ConditionFailed:
    """The exception to raise instead of `error`."""
    text = summary(error)
    if condition_failed(error):
        return ConditionFailed(key)
    if isinstance(error, FileNotFoundError) and not _NO_BUCKET.search(str(error)):
        return object_not_found(key, location)
    if _NO_KEYS.search(str(error)):
        text = NO_AWS_KEYS
    message = f"cannot {action} {repr(key) + ' in ' if key else ''}{location}: {text}"
    if _UNSATISFIABLE.search(str(error)):
        return RangeNotSatisfiable(message, ErrorKind.INVALID_OBJECT_SIZE)
    if _THROTTLED.search(str(error)):
        return StorageError(message, ErrorKind.THROTTLED)
    if _NO_BUCKET.search(str(error)):
        advice = "create the bucket first, or check its name, region and endpoint"
        return BucketMissing(f"{message}; {advice}", ErrorKind.OBJECT_STORE)
    if isinstance(error, DEFINITE):
        return RequestRefused(message, ErrorKind.OBJECT_STORE)
    if _NOT_SENT.search(str(error)):
        return RequestNotSent(message, ErrorKind.OBJECT_STORE)
    return StorageError(message, ErrorKind.OBJECT_STORE)


def summary(error: Exception) -> str:
    """What went wrong in one line, without the query strings that may hold signatures."""
    text = str(error).partition("\n\nDebug source")[0]
    answer = _ANSWER.search(text)
    first_line = _SIGNED.sub("", text.partition("<?xml")[0].partition("\n")[0]).strip(" :")
    if answer:
        return f"{first_line} ({': '.join(filter(None, answer.groups()))})"
    return first_line or type(error).__name__
