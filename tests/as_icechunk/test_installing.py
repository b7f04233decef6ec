"""`import icechunk` finds icefloe: here, in spawned processes, in dask and on Spark's executors."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.as_icechunk.programs import run, start

ALONE: tuple[str, ...] = ()


def test_a_program_runs_unchanged(tmp_path: Path) -> None:
    said = run(
        """
        import sys
        import icechunk
        import icechunk.store
        from icechunk.xarray import to_icechunk
        from icechunk.session import Session as ByModule
        import icefloe, icefloe.as_icechunk

        if __name__ == "__main__":
            assert icechunk is icefloe.as_icechunk
            assert icechunk.Session is ByModule is icefloe.Session
            assert icechunk.store is sys.modules["icefloe.as_icechunk.store"]
            print(sys.argv[1:], icechunk.__version__)
        """,
        tmp_path,
    )
    assert said == "['one', 'two'] 2.3.0\n"


def test_each_array_has_a_manifest_unless_a_config_says_otherwise(tmp_path: Path) -> None:
    said = run(
        """
        import icechunk, zarr

        def manifests(*config):
            repo = icechunk.Repository.create(icechunk.in_memory_storage(), *config)
            session = repo.writable_session("main")
            for name in "abc":
                zarr.create_array(session.store, name=name, shape=(1,), dtype="i4")[:] = 1
            return len(repo.list_manifest_files(session.commit("three arrays")))

        shared = icechunk.ManifestConfig(max_shared_refs_per_array=64)
        print(manifests(), manifests(icechunk.RepositoryConfig(manifest=shared)))
        """,
        tmp_path,
    )
    assert said == "3 1\n"


def test_modules_and_commands_run_too(tmp_path: Path) -> None:
    (tmp_path / "tool.py").write_text(
        "import icechunk, sys; print(icechunk.__name__, sys.argv[1:])"
    )
    run_module = f"""
        import os, runpy, sys
        os.chdir({str(tmp_path)!r})
        sys.argv = ["x", "-m", "tool", "a"]
        runpy.run_module("icefloe.as_icechunk", run_name="__main__")
        """
    assert run(run_module, tmp_path, by=ALONE) == "icefloe.as_icechunk ['a']\n"
    command = "import icechunk, sys; print(icechunk.__name__, sys.argv[2:])"
    said = run("", tmp_path, by=("-m", "icefloe.as_icechunk", "-c", command))
    assert said == "icefloe.as_icechunk ['one', 'two']\n"


def test_a_spawned_process_finds_it(tmp_path: Path) -> None:
    said = run(
        """
        import multiprocessing
        import icechunk

        def name_in_worker(queue):
            import icechunk
            queue.put((icechunk.__name__, icechunk.Repository.__module__))

        if __name__ == "__main__":
            context = multiprocessing.get_context("spawn")
            queue = context.Queue()
            worker = context.Process(target=name_in_worker, args=(queue,))
            worker.start()
            print(queue.get(timeout=300))
            worker.join()
        """,
        tmp_path,
    )
    assert said == "('icefloe.as_icechunk', 'icefloe.api.repository')\n"


def test_install_in_the_middle_of_a_program(tmp_path: Path) -> None:
    program = """
        from icefloe.as_icechunk import install

        install()
        install()
        import icechunk.dask
        from icechunk import config
        print(icechunk.dask.__name__, config.__name__)
        try:
            import icechunk.nothing
        except ModuleNotFoundError as error:
            print(error)
        """
    assert run(program, tmp_path, by=ALONE) == (
        "icefloe.as_icechunk.dask icefloe.as_icechunk.config\nNo module named 'icechunk.nothing'\n"
    )


def test_it_refuses_when_the_original_is_imported_already(tmp_path: Path) -> None:
    original = tmp_path / "icechunk"
    original.mkdir()
    (original / "__init__.py").write_text("__version__ = '2.3.0'")
    failed = start("import icechunk, icefloe.as_icechunk as a; a.install()", tmp_path, by=ALONE)
    assert failed.returncode == 1
    assert f"icechunk 2.3.0 is imported already, from {original}" in failed.stderr
    assert "before anything imports icechunk" in failed.stderr


def test_settings_for_spark_are_kept(tmp_path: Path) -> None:
    said = run(
        """
        import os
        os.environ["PYSPARK_SUBMIT_ARGS"] = (
            "--conf spark.executorEnv.PYTHONPATH=/mine --name 'a b' pyspark-shell"
        )
        from icefloe.as_icechunk import FOLDER, install
        install()
        print(os.environ["PYSPARK_SUBMIT_ARGS"].replace(FOLDER, "FOLDER"))
        """,
        tmp_path,
        by=ALONE,
    )
    assert said == ("--conf spark.executorEnv.PYTHONPATH=FOLDER:/mine --name 'a b' pyspark-shell\n")


@pytest.mark.long
def test_executors_of_spark_find_it(tmp_path: Path) -> None:
    """PYTHONPATH is taken back, so that only Spark's own settings lead there."""
    said = run(
        """
        import os, sys
        before = os.environ.get("PYTHONPATH", "")
        from icefloe.as_icechunk import install
        install()
        os.environ["PYTHONPATH"] = before
        from icefloe.spark import session

        def name_in_worker(batches):
            import icechunk
            import pyarrow
            for _ in batches:
                yield pyarrow.RecordBatch.from_pydict({"name": [icechunk.__name__]})

        spark = session(master="local[1]")
        print(spark.range(1).mapInArrow(name_in_worker, "name string").collect()[0].name)
        spark.stop()
        """,
        tmp_path,
        by=ALONE,
    )
    assert said == "icefloe.as_icechunk\n"
