"""Creating, opening and recognising repositories."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from icefloe.assets.assets import Assets, Caches, RepoObject, object_metadata
from icefloe.assets.virtual_access import Authorizations, VirtualAccess
from icefloe.assets.virtual_fetch import VirtualReader
from icefloe.config import RepositoryConfig
from icefloe.errors import (
    AlreadyExistsError,
    ErrorKind,
    InvalidInputError,
    RepositoryNotFoundError,
    StorageError,
)
from icefloe.format import layout
from icefloe.format.repo_info.file import (
    RepoAvailability,
    RepoInfo,
    RepoStatus,
    Update,
    UpdateKind,
    decode_repo_info,
    encode_repo_info,
)
from icefloe.format.repo_info.snapshots import SnapshotInfo, SnapshotTable
from icefloe.format.snapshot.file import ManifestFiles, Snapshot
from icefloe.format.snapshot.nodes import NodeTable
from icefloe.ids import FIRST_SNAPSHOT_ID
from icefloe.on_demand import on_demand
from icefloe.repo.handle import Clock, RepoHandle, Shared
from icefloe.repo.refs import MAIN
from icefloe.storage.driver import ConditionFailed, Driver, Version
from icefloe.storage.keys import PROBE_DIRECTORY
from icefloe.storage.spec import Storage

if TYPE_CHECKING:
    from icefloe.format import ref_files, transaction_log
    from icefloe.format.config import file as config_file
    from icefloe.storage.drivers import probe
else:
    config_file = on_demand("icefloe.format.config.file")
    ref_files = on_demand("icefloe.format.ref_files")
    transaction_log = on_demand("icefloe.format.transaction_log")
    probe = on_demand("icefloe.storage.drivers.probe")

YAML_CONTENT_TYPE = "application/yaml"
_PAUSES_S = (0.05, 0.1, 0.2, 0.4)
_FIRST_METADATA = {"__icechunk": {"is_root": True}}
_FIRST_MESSAGE = "Repository initialized"


async def find_object(driver: Driver, key: str) -> tuple[bytes, Version] | None:
    """An object that may be missing, also because its bucket is."""
    try:
        return await driver.get_versioned(key)
    except StorageError as error:
        if error.kind == ErrorKind.OBJECT_NOT_FOUND or error.is_bucket_missing:
            return None
        raise


async def fetch_spec_version(driver: Driver) -> int | None:
    """The version of the repository stored here, or None if there is none."""
    found = await find_object(driver, layout.REPO)
    if found is not None:
        decode_repo_info(found[0], layout.REPO)
        return 2
    if await find_object(driver, layout.branch_key(MAIN)) is not None:
        return 1
    return None


async def fetch_config(storage: Storage, driver: Driver) -> RepositoryConfig | None:
    """The saved configuration, or None if none was saved.

    Raises:
        RepositoryNotFoundError: there is no repository.
    """
    found = await find_object(driver, layout.REPO)
    if found is not None:
        config = decode_repo_info(found[0], layout.REPO).config
        return None if config is None else config_file.decode_config_flexbuffer(config)
    await _require_version_1(storage, driver)
    found = await find_object(driver, layout.CONFIG_YAML)
    return None if found is None else config_file.decode_config_yaml(found[0])


async def _require_version_1(storage: Storage, driver: Driver) -> None:
    if await find_object(driver, layout.branch_key(MAIN)) is None:
        raise RepositoryNotFoundError(
            f"no repository in {storage!r}: neither {layout.REPO!r} nor "
            f"{layout.branch_key(MAIN)!r} exists; create one, or check the path"
        )


async def open_repository(
    storage: Storage,
    driver: Driver,
    config: RepositoryConfig | None,
    clock: Clock,
    *,
    authorize: Authorizations | None = None,
    are_containers_own: bool | None = None,
) -> RepoHandle:
    """Open what is stored here; one request for a version-2 repository.

    `authorize` says which virtual chunks may be read, and with what; `are_containers_own`
    whether the caller vouches for the containers, normally if they are in `config`.

    Raises:
        RepositoryNotFoundError: nothing is.
    """
    found = await find_object(driver, layout.REPO)
    if found is not None:
        data, version = found
        info = decode_repo_info(data, layout.REPO)
        saved = None if info.config is None else config_file.decode_config_flexbuffer(info.config)
        access = _access(saved, config, authorize, are_containers_own)
        handle = make_handle(storage, driver, 2, _merged(saved, config), clock, access)
        handle.assets.caches.repo = RepoObject(info, data, version)
        return handle
    await _require_version_1(storage, driver)
    found = await find_object(driver, layout.CONFIG_YAML)
    saved = None if found is None else config_file.decode_config_yaml(found[0])
    access = _access(saved, config, authorize, are_containers_own)
    handle = make_handle(storage, driver, 1, _merged(saved, config), clock, access)
    handle.shared.config_version = None if found is None else found[1]
    return handle


async def create_repository(
    storage: Storage,
    driver: Driver,
    config: RepositoryConfig | None,
    clock: Clock,
    *,
    spec_version: int,
    check_clean_root: bool,
    authorize: Authorizations | None = None,
) -> RepoHandle:
    """Start a repository: an empty first snapshot and the branch `main`.

    Raises:
        AlreadyExistsError: somebody else created one at the same moment.
        InvalidInputError: the place is not empty, kind `parent-directory-not-clean`.
    """
    if spec_version not in (1, 2):
        raise InvalidInputError(f"spec_version is {spec_version!r}, expected 1 or 2")
    if config is not None:
        config.validate()
    access = _access(None, config, authorize)
    handle = make_handle(storage, driver, spec_version, _merged(None, config), clock, access)
    handle.require_writable()
    if check_clean_root and not await driver.is_empty() and not await _is_unfinished(driver):
        raise InvalidInputError(
            f"{storage!r} is not empty: open the repository that is there, choose another place, "
            "or pass check_clean_root=False",
            ErrorKind.PARENT_DIRECTORY_NOT_CLEAN,
        )
    if (found := await fetch_spec_version(driver)) is not None:
        raise AlreadyExistsError(
            f"{storage!r} holds a repository of spec version {found} already; open it",
            ErrorKind.REPO_INFO_UPDATED,
        )
    await probe.check_conditions_are_honoured(driver)
    first = await _put_first_snapshot(handle)
    saved = config if config is not None and config != RepositoryConfig() else None
    try:
        if spec_version > 1:
            await _publish_v2(handle, first, saved)
        else:
            await _publish_v1(handle, saved)
    except ConditionFailed:
        raise AlreadyExistsError(
            f"{storage!r}: another process created a repository here at the same time; open it",
            ErrorKind.REPO_INFO_UPDATED,
        ) from None
    return handle


async def _is_unfinished(driver: Driver) -> bool:
    """Whether all that is here was left by a creation that broke off before it was published."""
    leftovers = {
        layout.snapshot_key(FIRST_SNAPSHOT_ID),
        layout.transaction_log_key(FIRST_SNAPSHOT_ID),
        layout.CONFIG_YAML,
    }
    if await find_object(driver, layout.snapshot_key(FIRST_SNAPSHOT_ID)) is None:
        return False
    listed = {entry.key for entry in await driver.list("")}
    return all(key in leftovers or key.startswith(PROBE_DIRECTORY) for key in listed)


async def _put_first_snapshot(handle: RepoHandle) -> Snapshot:
    """Write the first snapshot, or take the one that another creator has written.

    Its id is the same in every repository, so unlike all others it must not be overwritten.
    """
    first = Snapshot(
        FIRST_SNAPSHOT_ID,
        NodeTable.from_nodes([]),
        handle.clock.now_us(),
        _FIRST_MESSAGE,
        _FIRST_METADATA,
        ManifestFiles.from_infos([]),
    )
    version = handle.spec_version
    files = [handle.assets.encode_snapshot(first, version)]
    if version > 1:
        log = transaction_log.TransactionLog(FIRST_SNAPSHOT_ID)
        files.append(handle.assets.encode_log(log, version))
    for key, data in files:
        try:
            await handle.driver.put_if(key, data, previous=None, metadata=object_metadata(data))
        except ConditionFailed:
            if key == files[0][0]:
                first = await handle.assets.snapshot(FIRST_SNAPSHOT_ID)
    return first


async def _publish_v2(handle: RepoHandle, first: Snapshot, config: RepositoryConfig | None) -> None:
    listed = SnapshotInfo(first.id, None, first.flushed_at, first.message, first.metadata)
    info = RepoInfo(
        branches={MAIN: first.id},
        tags={},
        deleted_tags=frozenset(),
        snapshots=SnapshotTable.from_infos([listed]),
        status=RepoStatus(RepoAvailability.ONLINE, first.flushed_at),
        metadata={},
        latest_updates=(Update(UpdateKind.REPO_INITIALIZED, first.flushed_at),),
        config=None if config is None else config_file.encode_config_flexbuffer(config),
    )
    data = encode_repo_info(info, level=handle.settings.compression.level)
    version = await handle.driver.put_if(
        layout.REPO, data, previous=None, metadata=object_metadata(data)
    )
    handle.assets.caches.repo = RepoObject(info, data, version)


async def _publish_v1(handle: RepoHandle, config: RepositoryConfig | None) -> None:
    """The branch comes last: it is what makes a repository, and then it has its configuration."""
    driver = handle.driver
    if config is not None:
        data = config_file.encode_config_yaml(config)
        found = await find_object(driver, layout.CONFIG_YAML)
        if found is None:
            handle.shared.config_version = await driver.put_if(
                layout.CONFIG_YAML, data, previous=None, content_type=YAML_CONTENT_TYPE
            )
        elif found[0] == data:
            handle.shared.config_version = found[1]
        else:
            raise AlreadyExistsError(
                f"{handle.storage!r} has a {layout.CONFIG_YAML} with other settings: another "
                "process is creating a repository here, or broke off while it did; open the "
                "repository when it is there, or delete that file",
                ErrorKind.REPO_INFO_UPDATED,
            )
    ref = ref_files.encode_ref_file(FIRST_SNAPSHOT_ID)
    await driver.put_if(
        layout.branch_key(MAIN), ref, previous=None, content_type="application/json"
    )


def make_handle(
    storage: Storage,
    driver: Driver,
    spec_version: int,
    config: RepositoryConfig,
    clock: Clock,
    access: VirtualAccess | None = None,
) -> RepoHandle:
    """A handle with empty caches; the settings of the driver are those of its storage."""
    settings = replace(config.resolved(), storage=driver.settings)
    virtual = VirtualReader(access or VirtualAccess(), blocking=True)
    assets = Assets(driver, settings, Caches(settings), virtual=virtual)
    return RepoHandle(storage, assets, spec_version, config, Shared(), clock)


def _access(
    saved: RepositoryConfig | None,
    given: RepositoryConfig | None,
    authorize: Authorizations | None,
    are_own: bool | None = None,
) -> VirtualAccess:
    """Containers given now replace the saved ones, and only they are the caller's own words."""
    if are_own is None:
        are_own = given is not None and given.virtual_chunk_containers is not None
    containers = _merged(saved, given).virtual_chunk_containers
    return VirtualAccess.make(containers, authorize, are_own=are_own)


def _merged(saved: RepositoryConfig | None, given: RepositoryConfig | None) -> RepositoryConfig:
    """Saved settings, with those given now on top.

    Whether conditional writes can be done without depends on where the files lie now, and they
    may have been copied from elsewhere. So a file never switches them off.
    """
    config = saved or RepositoryConfig()
    if config.storage is not None:
        config = replace(
            config,
            storage=replace(
                config.storage,
                unsafe_use_conditional_create=None,
                unsafe_use_conditional_update=None,
                unsafe_use_metadata=None,
            ),
        )
    return config if given is None else config.merge(given)


async def open_or_create(
    storage: Storage,
    driver: Driver,
    config: RepositoryConfig | None,
    clock: Clock,
    *,
    spec_version: int,
    check_clean_root: bool,
    authorize: Authorizations | None = None,
) -> RepoHandle:
    """Open what is there, else create it; whoever loses a race opens what the other made."""
    try:
        return await open_repository(storage, driver, config, clock, authorize=authorize)
    except RepositoryNotFoundError:
        pass
    try:
        return await create_repository(
            storage,
            driver,
            config,
            clock,
            spec_version=spec_version,
            check_clean_root=check_clean_root,
            authorize=authorize,
        )
    except (AlreadyExistsError, InvalidInputError) as problem:
        # Another process was faster, or is in the middle of it: then its repository shows up
        # soon. If none does, this place really holds something else.
        for pause in _PAUSES_S:
            try:
                return await open_repository(storage, driver, config, clock, authorize=authorize)
            except RepositoryNotFoundError:
                await driver.sleep(pause)
        raise problem from None
