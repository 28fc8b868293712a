from __future__ import annotations

import importlib.machinery
import importlib.util
import socket
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from sparda_core.errors import ConfigError
from sparda_core.whatif.backends import open_pool
from sparda_core.whatif.grid import Grid
from sparda_core.whatif.scenario import Scenario
from sparda_core.whatif.study import run_grid

pytestmark = pytest.mark.skipif(importlib.util.find_spec("joblib") is None, reason="joblib is not installed")

GRID = Grid(
    base=Scenario(shape="smollm2-135m", context=4096, budget=16, local=3),
    axes={"batch": (1, 2, 4, 8, 4096), "selector": ("query", "forecast"), "ctas": (2, 16)},
)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What this process writes without any pool."""
    folder = tmp_path_factory.mktemp("alone")
    run_grid(GRID, folder=folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def written(folder: Path, backend: str, **options: Any) -> dict[str, bytes]:
    with open_pool(backend, **options) as pool:
        run_grid(GRID, pool=pool, folder=folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(("backend", "jobs"), [("loky", 2), ("threading", 3)])
def test_processes_and_threads_write_the_same_bytes(
    backend: str, jobs: int, alone: dict[str, bytes], tmp_path: Path
) -> None:
    assert written(tmp_path, backend, jobs=jobs) == alone


@pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="distributed (dask) is not installed")
@pytest.mark.filterwarnings("ignore")  # what a cluster says while it starts and stops is not ours
def test_an_existing_dask_cluster_writes_the_same_bytes(alone: dict[str, bytes], tmp_path: Path) -> None:
    import distributed

    options: dict[str, Any] = {"n_workers": 1, "threads_per_worker": 2, "processes": False, "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster:  # type: ignore[no-untyped-call]
        assert written(tmp_path, "dask", address=cluster.scheduler_address) == alone


class Ray(types.ModuleType):
    """Stands for Ray: notes what it is told, and registers a backend that hands results back all at once, as Ray's."""

    def __init__(self) -> None:
        super().__init__("ray")
        self.__spec__ = importlib.machinery.ModuleSpec("ray", None)
        self.told: list[Any] = []
        self.refusal: Exception | None = None

    def init(self, **options: Any) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.told.append(options)

    def shutdown(self) -> None:
        self.told.append("shutdown")


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Ray:
    import joblib
    from joblib.parallel import ThreadingBackend

    class Waves(ThreadingBackend):  # type: ignore[misc]
        supports_return_generator = False

    stub, inner = Ray(), types.ModuleType("ray.util.joblib")
    inner.register_ray = lambda: joblib.register_parallel_backend("ray", Waves)  # type: ignore[attr-defined]
    for name, module in (("ray", stub), ("ray.util", types.ModuleType("ray.util")), ("ray.util.joblib", inner)):
        monkeypatch.setitem(sys.modules, name, module)
    return stub


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_a_ray_cluster_is_joined_registered_and_left(
    scheme: str, ray: Ray, alone: dict[str, bytes], tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"{scheme}127.0.0.1:{head.getsockname()[1]}"
        assert written(tmp_path, "ray", address=address) == alone
    assert ray.told == [{"address": address, "log_to_driver": False, "logging_level": "error"}, "shutdown"]


def test_the_ray_cluster_of_this_machine_is_the_usual_one(ray: Ray) -> None:
    with open_pool("ray") as pool:
        assert list(pool(abs, [-1, -2])) == [1, 2]
    assert ray.told[0]["address"] == "auto"


def test_nobody_at_the_address_is_one_clear_error(ray: Ray) -> None:
    ray.refusal = ConnectionError("nobody")
    with pytest.raises(ConfigError, match="no Ray cluster at address='auto'"), open_pool("ray"):
        raise AssertionError


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_ray_is_not_asked_where_nobody_listens(scheme: str, ray: Ray) -> None:
    """It would ask again and again, for minutes."""
    with socket.create_server(("127.0.0.1", 0)) as was_there:
        address = f"{scheme}127.0.0.1:{was_there.getsockname()[1]}"
    with pytest.raises(ConfigError, match=f"no Ray cluster at address='{address}'"), open_pool("ray", address=address):
        raise AssertionError
    assert ray.told == []


@pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="distributed (dask) is not installed")
@pytest.mark.filterwarnings("ignore")
def test_no_dask_scheduler_at_the_address_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparda_core.whatif.backends.PATIENCE_S", 0.2)
    with (
        pytest.raises(ConfigError, match=r"no Dask scheduler answers at address='tcp://127\.0\.0\.1:9'"),
        open_pool("dask", address="tcp://127.0.0.1:9"),
    ):
        raise AssertionError


@pytest.mark.parametrize(
    ("backend", "options", "lacks", "says"),
    [
        ("loky", {"jobs": 2}, "joblib", r"package joblib.*pip install 'sparda\[study\]'"),
        ("dask", {"address": "tcp://x:1"}, "distributed", r"package distributed.*sparda\[dask\]"),
        ("ray", {}, "ray", r"package ray.*sparda\[ray\]"),
        ("dask", {}, "", "needs the scheduler's address"),
        ("loky", {"address": "tcp://x:1"}, "", "means nothing to backend='loky'"),
        ("loky", {"jobs": 0}, "", "jobs=0 must be >= 1"),
    ],
)
def test_what_is_missing_is_named_with_the_extra_that_brings_it(
    backend: str, options: dict[str, Any], lacks: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec

    def find_spec(name: str, package: str | None = None) -> Any:
        return None if name == lacks else real(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    with pytest.raises(ConfigError, match=says), open_pool(backend, **options):
        raise AssertionError
