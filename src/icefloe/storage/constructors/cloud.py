"""Repositories on Google Cloud Storage and Azure; others are in `common.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from icefloe.storage.identity.credentials import GcsBearerCredential
from icefloe.storage.identity.functions import azure_credentials, gcs_credentials
from icefloe.storage.places.locations import AzureLocation, GcsLocation, as_headers, normal_prefix
from icefloe.storage.spec import Storage


def gcs_storage(
    *,
    bucket: str,
    prefix: str | None,
    service_account_file: str | None = None,
    service_account_key: str | None = None,
    application_credentials: str | None = None,
    bearer_token: str | None = None,
    anonymous: bool | None = None,
    from_env: bool | None = None,
    config: Mapping[str, str] | None = None,
    get_credentials: Callable[[], GcsBearerCredential] | None = None,
    scatter_initial_credentials: bool = False,
    read_headers: Mapping[str, str] | None = None,
    write_headers: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Storage:
    """A repository in a bucket of Google Cloud Storage; `config` has further client options.

    Args:
        bucket: its name.
        prefix: the folder of the repository in it.
        service_account_file: the path of a JSON key.
        service_account_key: such a key as text.
        application_credentials: the path of what `gcloud auth application-default login` wrote.
        bearer_token: an OAuth token.
        anonymous: do not sign: for public buckets.
        from_env: take the credentials from the environment, as without any.
        get_credentials: a function that returns `GcsBearerCredential`, called when one is needed or
            about to end.
        scatter_initial_credentials: call it now, and send the result along in pickles.
        read_headers: sent with requests that read.
        write_headers: sent with requests that write.
        headers: sent with all requests.
    """
    credentials = gcs_credentials(
        service_account_file=service_account_file,
        service_account_key=service_account_key,
        application_credentials=application_credentials,
        bearer_token=bearer_token,
        anonymous=anonymous,
        from_env=from_env,
        get_credentials=get_credentials,
        scatter_initial_credentials=scatter_initial_credentials,
    )
    return Storage(
        GcsLocation(
            bucket,
            normal_prefix(prefix),
            credentials,
            as_headers(config),
            as_headers(headers, read_headers),
            as_headers(headers, write_headers),
        )
    )


def azure_storage(
    *,
    account: str,
    container: str,
    prefix: str,
    access_key: str | None = None,
    sas_token: str | None = None,
    bearer_token: str | None = None,
    from_env: bool | None = None,
    anonymous: bool | None = None,
    config: Mapping[str, str] | None = None,
) -> Storage:
    """A repository in a container of Azure blob storage; `config` has further client options.

    Args:
        account: the storage account.
        container: its name.
        prefix: the folder of the repository in it.
        access_key: the key of the account.
        sas_token: a shared access signature.
        bearer_token: an OAuth token.
        from_env: take the credentials from the environment, as without any.
        anonymous: do not sign: for public containers.
    """
    credentials = azure_credentials(
        access_key=access_key,
        sas_token=sas_token,
        bearer_token=bearer_token,
        from_env=from_env,
        anonymous=anonymous,
    )
    return Storage(
        AzureLocation(account, container, normal_prefix(prefix), credentials, as_headers(config))
    )
