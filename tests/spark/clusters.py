"""Processes of Spark that tests start and end: drivers, and a cluster on addresses of this host."""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyspark

from icefloe.spark.start import find_java_home
from tests.spark.fault_driver import MARK, Order

ROOT = Path(__file__).parents[2]
START_SECONDS = 500.0
ORDER_SECONDS = 500.0
ADDRESSES = ("127.0.0.1", "127.0.0.2")
"""Spark never runs two attempts of a task on one host at the same time; Linux answers to both."""


class FaultDriver:
    """A running `tests.spark.fault_driver`."""

    def __init__(self, log: Path, master: str, **settings: Any) -> None:
        texts = [f"spark.{name.replace('__', '.')}={value}" for name, value in settings.items()]
        self._log = log
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", "tests.spark.fault_driver", master, *texts],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                cwd=ROOT,
                env=environment(),
            )
        self._answer(START_SECONDS)

    def obey(self, order: Order) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(order.line().encode() + b"\n")
        self._process.stdin.flush()
        return self._answer(ORDER_SECONDS)

    def _answer(self, seconds: float) -> dict[str, Any]:
        output = self._process.stdout
        assert output is not None
        limit = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            while selector.select(max(0.0, limit - time.monotonic())):
                line = output.readline().decode()
                if line.startswith(MARK):
                    found: dict[str, Any] = json.loads(line.removeprefix(MARK))
                    return found
                if not line:
                    break
        told = self._log.read_text(errors="replace")[-3000:]
        raise TimeoutError(f"the driver gave no answer within {seconds} s:\n{told}")

    def kill(self) -> None:
        """The program, its Java and everything below, without a warning."""
        me = psutil.Process(self._process.pid)
        _kill([me, *me.children(recursive=True)])
        self._process.wait(10)
        self._close()

    def stop(self) -> None:
        """Let it end by itself; what does not is killed."""
        if self._process.poll() is not None:
            self._close()
            return
        below = psutil.Process(self._process.pid).children(recursive=True)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(30)
        _kill([*below, *([] if self._process.poll() is not None else [_process(self)])])
        self._process.wait(10)
        self._close()

    def _close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def _process(driver: FaultDriver) -> psutil.Process:
    return psutil.Process(driver._process.pid)


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=10)


def environment(**more: str) -> dict[str, str]:
    """That of a program which uses Spark: the workers find this Python, icefloe and the tests."""
    home = find_java_home(os.environ)
    paths = [str(ROOT / "src"), str(ROOT)]
    return {
        **os.environ,
        **({} if home is None else {"JAVA_HOME": home}),
        "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]),
        "PYSPARK_PYTHON": sys.executable,
        **more,
    }


@contextlib.contextmanager
def standalone_cluster(folder: Path) -> Iterator[str]:
    """A master and a worker of one core on each address; its URL. All are gone at the end."""
    started: list[psutil.Popen] = []
    try:
        log = folder / "master.log"
        listening = ["--host", ADDRESSES[0], "--port", "0", "--webui-port", "0"]
        started.append(_spark_class("master.Master", listening, log, ADDRESSES[0]))
        url = _wait_for(log, r"Starting Spark master at (spark://\S+)")
        for address in ADDRESSES:
            log = folder / f"worker-{address}.log"
            given = ["--host", address, "--cores", "1", "--memory", "1g", "--webui-port", "0"]
            work = ["--work-dir", str(folder / f"work-{address}"), url]
            started.append(_spark_class("worker.Worker", [*given, *work], log, address))
        for address in ADDRESSES:
            _wait_for(folder / f"worker-{address}.log", r"(Successfully registered)")
        yield url
    finally:
        below = [child for process in started for child in process.children(recursive=True)]
        _kill([*started, *below])


def _spark_class(name: str, arguments: list[str], log: Path, address: str) -> psutil.Popen:
    program = Path(pyspark.__path__[0], "bin", "spark-class")
    options = "-Dspark.master.rest.enabled=false -Dspark.deploy.maxExecutorRetries=-1"
    variables = environment(SPARK_LOCAL_IP=address, SPARK_DAEMON_JAVA_OPTS=options)
    with log.open("wb") as output:
        return psutil.Popen(
            [str(program), f"org.apache.spark.deploy.{name}", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=variables,
        )


def _wait_for(log: Path, pattern: str) -> str:
    limit = time.monotonic() + START_SECONDS
    while time.monotonic() < limit:
        found = re.search(pattern, log.read_text(errors="replace"))
        if found is not None:
            return found[1]
        time.sleep(0.1)
    told = log.read_text(errors="replace")[-3000:]
    raise TimeoutError(f"no {pattern!r} within {START_SECONDS} s in:\n{told}")
