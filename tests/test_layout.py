"""The package has no circle; tests mirror it: a module has the test file of its name, or stands here with the one that tests it."""

from __future__ import annotations

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import kernel_archive

PACKAGE = Path(kernel_archive.__file__).parent
TESTS = Path(__file__).parent

#: Module -> the test file that goes through it, for modules that nobody calls but from another one: its parts are told
#: apart in the tests of the whole, not in a file of their own.
ELSEWHERE = {
    "archive/guess": "archive/test_first_look",
    "archive/look_runs": "archive/test_first_look",
    "archive/look_tables": "archive/test_first_look",
    "archive/seen": "archive/test_first_look",
    "archive/crosschecks": "archive/test_validate",
    "archive/fragments": "archive/test_search_rows",
    "archive/info": "cli/test_inspect",
    "archive/labels": "archive/test_consolidate",
    "archive/manifest": "archive/test_build",
    "archive/open": "archive/test_build",
    "archive/shards": "archive/test_build",
    "cli/build": "cli/test_cli",
    "cli/common": "cli/test_terminal",
    "connections": "publishing/test_hostile_hub",
    "errors": "test_vocabulary",
    "gpus": "test_vocabulary",
    "measure/device": "measure/test_guards",
    "measure/measurer": "measure/test_worker",
    "measure/process": "measure/test_worker",
    "measure/runs": "measure/test_record",
    "measure/settings": "measure/test_worker",
    "measure/torch_device": "measure/test_gpu",
    "problems": "test_vocabulary",
    "publishing/facts": "publishing/test_card",
    "publishing/templates": "publishing/test_card",
    "readers/beside": "readers/test_runs_around",
    "readers/checkpoints": "readers/test_samples",
    "readers/doubts": "readers/test_measurements",
    "readers/events": "readers/test_event_log",
    "readers/files": "readers/test_registry",
    "readers/mapping": "readers/test_measurements",
    "readers/reading": "readers/test_event_log",
    "readers/records": "readers/test_registry",
    "readers/row_logs": "readers/test_samples",
    "readers/salvage": "readers/test_damage",
    "readers/sniff": "readers/test_damage",
    "readers/tables": "readers/test_hub",
    "readers/values": "readers/test_registry",
    "schema": "test_docs",
    "scoring/curves": "scoring/test_calibration",
    "scoring/faults": "scoring/test_reader",
    "scoring/load": "scoring/test_target",
    "selection/selected": "selection/test_leakage",
    "selection/tables": "selection/test_leakage",
}
#: Rooms whose modules are not looked at one by one: each problem's task is tried by one test for all of them, and the
#: modules of a run of a language model on its way from question to forecast.
TOGETHER = {"measure/tasks": "measure/test_tasks", "llm": "llm/test_batch"}


def modules() -> list[str]:
    """Every module that holds something, by its path in the package, without those of rooms that are tested together."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).with_suffix("").as_posix()
        if not path.name.startswith("_") and Path(name).parent.as_posix() not in TOGETHER:
            found.append(name)
    return found


@pytest.mark.parametrize("name", modules())
def test_every_module_has_its_test(name):
    """In a file of its name, or in the one that is stated; never both."""
    own = TESTS / Path(name).parent / f"test_{Path(name).name}.py"
    if own.exists():
        assert name not in ELSEWHERE
    else:
        assert name in ELSEWHERE, f"write {own.relative_to(TESTS)}, or state here which file tests {name}"


def test_what_is_stated_is_there():
    """No entry outlives its module or its test file."""
    assert ELSEWHERE.keys() <= set(modules())
    stated = {*ELSEWHERE.values(), *TOGETHER.values()}
    assert [name for name in sorted(stated) if not (TESTS / f"{name}.py").exists()] == []


#: An import from the package, wherever it stands. (To parse the files whole takes fifteen times as long.)
IMPORT = re.compile(r"^ *((?:from|import) +(?:kernel_archive|\.)[^(\n]*(?:\([^)]*\))?)", re.MULTILINE)


def imported(text: str) -> set[str]:
    """What a module imports from the package, also inside functions and for types alone: modules, and names in them."""
    found: set[str] = set()
    for statement in map(ast.parse, IMPORT.findall(text)):
        node = statement.body[0]
        assert isinstance(node, (ast.Import, ast.ImportFrom))
        assert getattr(node, "level", 0) == 0, f"a relative import: {ast.unparse(node)}"
        inside = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
        found |= {inside + name.name for name in node.names}
    return found


def test_no_circle_of_imports():
    """Nobody who reads a module comes back to it by way of what it imports."""
    texts = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path.read_text()
        for path in PACKAGE.rglob("*.py")
    }
    arrows = {
        module: {name if name in texts else name.rpartition(".")[0] for name in imported(text)}
        for module, text in texts.items()
    }
    assert sum(map(len, arrows.values())) > 1000  # the imports were found
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        circle = " -> ".join(reversed(error.args[1]))
        pytest.fail(f"a circle of imports (those inside functions and for types count): {circle}")
