"""Backends: where the points of a study are computed. joblib does the work; a cluster is one that is there already."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, Protocol, TypeVar

from sparda_core.errors import ConfigError, UnknownNameError

A = TypeVar("A")
B = TypeVar("B")

#: Seconds to wait for a scheduler to answer.
PATIENCE_S = 15
#: Tasks handed out at a time, per worker, where a backend returns results only when all of them are done.
WAVE = 4


class Pool(Protocol):
    """Applies a function to tasks, wherever; results come in the order of the tasks, as soon as they are there."""

    def __call__(self, function: Callable[[A], B], tasks: Iterable[A]) -> Iterator[B]:
        """The function must be importable by name."""


def serial(function: Callable[[A], B], tasks: Iterable[A]) -> Iterator[B]:
    """The pool of one: in this process, without joblib."""
    return map(function, tasks)


@contextlib.contextmanager
def open_pool(backend: str = "loky", *, jobs: int = 1, address: str | None = None) -> Iterator[Pool]:
    """A pool on a backend.

    backend  loky (processes), threading, dask, ray
    jobs     processes or threads here; on a cluster, its own workers count instead
    address  of a Dask scheduler (tcp://host:8786), or of a Ray cluster (None: the one that runs here)
    raises   UnknownNameError, ConfigError: a missing package (the extra is named), nobody at the address
    """
    if backend not in BACKENDS:
        raise UnknownNameError(what="backend", name=backend, known=BACKENDS)
    if address is not None and backend not in CLUSTERS:
        raise ConfigError(f"address={address!r} means nothing to backend={backend!r}; use --backend dask or ray")
    if jobs < 1:
        raise ConfigError(f"jobs={jobs} must be >= 1")
    if backend == "loky" and jobs == 1:
        yield serial
        return
    with BACKENDS[backend](jobs, address) as pool:
        yield pool


def _need(package: str, extra: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise ConfigError(
            f"this needs the package {package}, which is not installed; run `pip install 'sparda[{extra}]'`"
        )


@contextlib.contextmanager
def _joblib(name: str, jobs: int, **options: Any) -> Iterator[Pool]:
    _need("joblib", "study")
    import joblib

    def run(function: Callable[[A], B], tasks: Iterable[A]) -> Iterator[B]:
        with joblib.parallel_config(backend=name, **options):
            yield from _results(joblib, jobs, function, tasks)

    yield run


def _results(joblib: Any, jobs: int, function: Callable[[A], B], tasks: Iterable[A]) -> Iterator[B]:
    """Ordered results; one by one where the backend can, in waves where it cannot (Ray)."""
    kind = joblib.parallel.get_active_backend()[0]
    with _gentle_stop() as stopped:
        queue = itertools.takewhile(lambda _: not stopped.is_set(), tasks)
        if kind.supports_return_generator:
            parallel = joblib.Parallel(n_jobs=jobs, batch_size=1, return_as="generator")
            with _born_deaf():
                results = parallel(joblib.delayed(function)(task) for task in queue)
            try:
                yield from results
            finally:
                results.close()
        else:
            with joblib.Parallel(n_jobs=jobs, batch_size=1) as parallel:
                workers = max(1, joblib.effective_n_jobs(jobs))
                while wave := list(itertools.islice(queue, WAVE * workers)):
                    yield from parallel(joblib.delayed(function)(task) for task in wave)
        if stopped.is_set():
            raise KeyboardInterrupt


@contextlib.contextmanager
def _gentle_stop() -> Iterator[threading.Event]:
    """The first Ctrl-C only sets the event: what workers are at is finished and kept. The second one interrupts.

    Killing workers in mid-task loses their rows and leaves semaphores behind, which their keeper then complains about.
    """
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # only that one may set a handler
        yield stopped
        return

    def stop(_number: int, _frame: FrameType | None) -> None:
        stopped.set()
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _born_deaf() -> Iterator[None]:
    """Processes started meanwhile ignore Ctrl-C from birth: one that comes up when it is pressed would die of it.

    For that moment this process ignores it, too.
    """
    if threading.current_thread() is not threading.main_thread():  # only that one may set a handler
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _dask(_jobs: int, address: str | None) -> Iterator[Pool]:
    _need("joblib", "dask")
    _need("distributed", "dask")
    import distributed

    if address is None:
        raise ConfigError("backend='dask' needs the scheduler's address: start `dask scheduler`, give --address tcp://...")
    try:
        client: Any = distributed.Client(address, timeout=PATIENCE_S, set_as_default=False)  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as wrong:  # TimeoutError is an OSError
        raise ConfigError(f"no Dask scheduler answers at address={address!r} ({wrong}); is it running?") from wrong
    with client, _joblib("dask", -1, client=client) as pool:
        yield pool


@contextlib.contextmanager
def _ray(_jobs: int, address: str | None) -> Iterator[Pool]:
    _need("joblib", "ray")
    _need("ray", "ray")
    import ray
    from ray.util.joblib import register_ray

    try:
        # Ray asks an address where nobody listens for minutes, and writes about it.
        with contextlib.closing(_listener(address)):
            pass
        ray.init(address=address or "auto", log_to_driver=False, logging_level="error")
    except (ImportError, OSError, RuntimeError, ValueError) as wrong:  # ConnectionError is an OSError
        raise ConfigError(f"no Ray cluster at address={address or 'auto'!r} ({wrong}); is it running?") from wrong
    try:
        register_ray()
        with _joblib("ray", -1) as pool:
            yield pool
    finally:
        ray.shutdown()


def _listener(address: str | None) -> socket.socket:
    """A connection to host:port or ray://host:port; one to nobody where an address is of another kind.

    Raises OSError where nobody listens.
    """
    host, _, port = (address or "").rpartition("://")[2].rpartition(":")
    if not (host and port.isdecimal()):
        return socket.socket()
    return socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE_S)


def _threads(jobs: int, _address: str | None) -> contextlib.AbstractContextManager[Pool]:
    return _joblib("threading", jobs)


def _processes(jobs: int, _address: str | None) -> contextlib.AbstractContextManager[Pool]:
    return _joblib("loky", jobs, initializer=_leave_ctrl_c_to_the_parent)


def _leave_ctrl_c_to_the_parent() -> None:
    """A terminal interrupts its whole group; workers would each print a traceback, and the parent ends them anyway.

    For workers that take another's place later on; the first ones are born deaf.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)


#: Name -> how to open it.
BACKENDS: dict[str, Callable[[int, str | None], contextlib.AbstractContextManager[Pool]]] = {
    "loky": _processes, "threading": _threads, "dask": _dask, "ray": _ray,
}  # fmt: skip
#: Those that may be somewhere else.
CLUSTERS = ("dask", "ray")
