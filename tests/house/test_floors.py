"""Imports point down only, and what must not load torch does not."""

from __future__ import annotations

import subprocess
import sys

from tests.house.tree import LINKED, ROOT, imports, loads, modules, pyproject, python_files

# Lower number, lower floor. A module imports from floors below its own and from its own part, nothing else;
# imports inside functions and for the type checker count.
FLOORS = {
    "vocabulary": 0,
    "kernels": 1,
    "selectors": 2,
    "runtimes": 2,
    "simulator": 2,
    "models": 3,
    "compose": 4,
    "distill": 5,
    "whatif": 5,
    "published": 6,
    "evaluate": 6,
    "bench": 7,
    "testing": 7,
    "cli": 8,
    "front door": 9,
}

# What the simulator may know of runtimes: the files that write plans, torch-free by the test below.
PLAN_WRITERS = {value.partition(":")[0] for value in pyproject()["project"]["entry-points"]["sparda.runtimes"].values()}

LIGHT = ("vocabulary", "simulator", "whatif", "published", "cli", "front door")
HEAVY = {"torch", "triton", "transformers"}


def part(module: str) -> str:
    """Part of the house a module lives in; `sparda_core` itself is the front door, which shows all floors."""
    if module == "sparda_core":
        return "front door"
    names = module.split(".")
    return names[1] if len(names) > 1 and names[1] in FLOORS else "vocabulary"


def may_import(importer: str, imported: str) -> bool:
    here, there = part(importer), part(imported)
    # Anyone may ask `sparda_core` for the version; asking it for more is an import of sparda_core.something.
    return here == there or FLOORS[there] < FLOORS[here] or there == "front door"


def states_work(module: str) -> bool:
    return part(module) == "kernels" and module.rpartition(".")[2] in ("work", "work_table")


def simulator_may_import(imported: str) -> bool:
    return (
        part(imported) in ("vocabulary", "simulator", "front door")
        or imported in PLAN_WRITERS
        or states_work(imported)
    )


def torch_free() -> list[str]:
    """Modules that prediction touches: vocabulary, work, declarations, plan writers, simulator, commands."""
    points = pyproject()["project"]["entry-points"]
    declared = {value.partition(":")[0] for group in points.values() for value in group.values()}
    return sorted(
        name
        for name in modules()
        if part(name) in LIGHT or name in declared or states_work(name)
    )


def ours(importer: str) -> list[tuple[int, str]]:
    """Line and name of every import of our own modules, also late ones and those for the type checker."""
    found = imports(modules()[importer])
    return [(one.line, one.module) for one in found if one.module.split(".")[0] == "sparda_core"]


def test_imports_point_down() -> None:
    wrong = [
        f"{path}:{line} imports {imported}"
        for module, path in modules().items()
        for line, imported in ours(module)
        if not may_import(module, imported) and not (part(module) == "simulator" and simulator_may_import(imported))
    ]
    assert not wrong, "\n".join(wrong)


def test_the_simulator_knows_only_vocabulary_plan_writers_and_work() -> None:
    wrong = [
        f"{path}:{line} imports {imported}"
        for module, path in modules().items()
        if part(module) == "simulator"
        for line, imported in ours(module)
        if not simulator_may_import(imported)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_floor_check_notices_an_upward_and_a_sideways_import() -> None:
    assert may_import("sparda_core.cli.main", "sparda_core.plan")
    assert not may_import("sparda_core.plan", "sparda_core.kernels.topk.choose")
    assert not may_import("sparda_core.selectors.query", "sparda_core.runtimes.resident")
    assert not simulator_may_import("sparda_core.runtimes.session")


def test_every_folder_of_the_package_has_a_floor() -> None:
    folders = {path.parts[1] for path in python_files("sparda_core") if len(path.parts) > 2}
    assert folders <= FLOORS.keys(), f"add {sorted(folders - FLOORS.keys())} to FLOORS"


def test_nothing_is_imported_through_the_root_links() -> None:
    roots = set(LINKED) - {"selectors"}
    wrong = [
        f"{path}:{found.line} imports {found.module}"
        for path in python_files()
        for found in imports(path)
        if found.module.split(".")[0] in roots or found.module.startswith("selectors.")
    ]
    assert not wrong, "\n".join(wrong)


def test_prediction_code_names_no_heavy_import_at_module_level() -> None:
    wrong = [
        f"loading {module} loads {name}: {' -> '.join(chain)}"
        for module in torch_free()
        for name, chain in loads(module).items()
        if name in HEAVY
    ]
    assert not wrong, "\n".join(wrong)


def test_loading_all_prediction_code_leaves_torch_out_of_memory() -> None:
    code = (
        "import importlib, sys\n"
        f"for name in {torch_free()!r}:\n"
        "    importlib.import_module(name)\n"
        f"    heavy = sorted(set({sorted(HEAVY)!r}) & set(sys.modules))\n"
        "    assert not heavy, f'{name} loaded {heavy}'\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
