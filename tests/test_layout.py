"""The package keeps its order: rooms, names of classes, sizes; and tests mirror its modules."""

from __future__ import annotations

import ast
import re
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import kernel_archive

PACKAGE = Path(kernel_archive.__file__).parent
TESTS = Path(__file__).parent
MEASURE = PACKAGE.parent / "measure" / "kernel_measure"
#: Lines of a module, at most; a longer one holds two ideas.
MAX_LINES = 455
#: Rooms in their order: a room imports only from itself and from those before it.
ROOMS = (
    "vocabulary",
    "files",
    "readers",
    "archive",
    "selection",
    "scoring",
    "baselines",
    "llm",
    "board",
    "publishing",
    "pipeline",
    "cli",
)
#: Modules of the room ``files``; all others of the top level are vocabulary.
FILES = {
    "connections",
    "executors",
    "parquet_child",
    "storage",
    "untrusted",
    "untrusted_tables",
}

#: Module -> the test file that covers it, where that is not the file of its own name.
ELSEWHERE = {
    "archive/fragments": "archive/test_search_rows",
    "archive/labels": "archive/test_consolidate",
    "archive/manifest": "archive/test_build",
    "archive/open": "archive/test_build",
    "archive/shards": "archive/test_merge",
    "cli/build": "cli/test_cli",
    "cli/common": "cli/test_terminal",
    "connections": "publishing/test_hostile_hub",
    "errors": "test_vocabulary",
    "gpus": "test_vocabulary",
    "parquet_child": "test_untrusted_tables",
    "problems": "test_vocabulary",
    "publishing/facts": "publishing/test_card",
    "publishing/picture": "publishing/test_card",
    "publishing/verify": "publishing/test_pull",
    "publishing/templates": "publishing/test_card",
    "readers/agentic": "readers/test_samples",
    "readers/attempts": "readers/test_samples",
    "readers/beside": "readers/test_runs_around",
    "readers/checkpoints": "readers/test_samples",
    "readers/durations": "readers/test_runs_around",
    "readers/eval_set": "readers/test_samples",
    "readers/events": "readers/test_event_log",
    "readers/files": "readers/test_registry",
    "readers/puct": "readers/test_event_log",
    "readers/log_reader": "readers/test_event_log",
    "readers/records": "readers/test_registry",
    "readers/rollouts": "readers/test_samples",
    "readers/salvage": "readers/test_damage",
    "readers/sniff": "readers/test_damage",
    "readers/theory_builder": "readers/test_runs_around",
    "readers/values": "readers/test_registry",
    "readers/sql_doubts": "readers/test_sql",
    "readers/sql_sandbox": "readers/test_sql",
    "schema": "test_docs",
    "scoring/faults": "scoring/test_reader",
    "scoring/load": "scoring/test_split",
    "selection/inputs": "selection/test_check",
    "selection/selected": "selection/test_leakage",
}
#: Rooms whose modules are tested together.
TOGETHER = {"llm": "llm/test_batch"}


def modules() -> list[str]:
    """List the modules by path, without private ones and rooms that are tested together."""
    paths = [path.relative_to(PACKAGE).with_suffix("") for path in sorted(PACKAGE.rglob("*.py"))]
    return [
        path.as_posix()
        for path in paths
        if not path.name.startswith("_") and path.parent.as_posix() not in TOGETHER
    ]


@pytest.mark.parametrize("name", modules())
def test_every_module_has_its_test(name):
    """Either a file of its name, or the one that is stated above."""
    own = TESTS / Path(name).parent / f"test_{Path(name).name}.py"
    if own.exists():
        assert name not in ELSEWHERE
    else:
        hint = f"write {own.relative_to(TESTS)}, or state in ELSEWHERE which file tests {name}"
        assert name in ELSEWHERE, hint


def test_no_entry_outlives_its_module_or_test_file():
    """The table above is kept up to date."""
    assert ELSEWHERE.keys() <= set(modules())
    stated = {*ELSEWHERE.values(), *TOGETHER.values()}
    assert [name for name in sorted(stated) if not (TESTS / f"{name}.py").exists()] == []


#: An import from the package. (To parse whole files takes fifteen times as long.)
IMPORT = re.compile(
    r"^ *((?:from|import) +(?:kernel_archive|\.)[^(\n]*(?:\([^)]*\))?)", re.MULTILINE
)


def module_texts(folder: Path) -> dict[str, str]:
    """Map the dotted names of a package's modules to their texts."""
    return {
        ".".join(path.relative_to(folder.parent).with_suffix("").parts).removesuffix(
            ".__init__"
        ): path.read_text()
        for path in folder.rglob("*.py")
    }


def imported(text: str) -> set[str]:
    """List what a module imports from the package, also inside functions and for types alone."""
    names: set[str] = set()
    for statement in map(ast.parse, IMPORT.findall(text)):
        node = statement.body[0]
        assert isinstance(node, (ast.Import, ast.ImportFrom))
        assert getattr(node, "level", 0) == 0, f"a relative import: {ast.unparse(node)}"
        inside = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
        names |= {inside + name.name for name in node.names}
    return names


@pytest.fixture(scope="module")
def imports():
    """Maps every module of the package to the modules that it imports."""
    texts = module_texts(PACKAGE)
    arrows = {
        module: {name if name in texts else name.rpartition(".")[0] for name in imported(text)}
        for module, text in texts.items()
    }
    assert sum(map(len, arrows.values())) > 500  # the imports were found
    return arrows


def room(module: str) -> str:
    """Name the room of a module."""
    part = module.split(".")[1]
    if part in FILES:
        return "files"
    return part if part in ROOMS else "vocabulary"


def test_no_circle_of_imports(imports):
    """No chain of imports leads back to its beginning."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        circle = " -> ".join(reversed(error.args[1]))
        pytest.fail(f"a circle of imports (those inside functions and for types count): {circle}")


def test_rooms_import_from_the_rooms_before_them_only(imports):
    """The order is that of docs/architecture.md."""
    upwards = [
        f"{module} imports {name}"
        for module, names in sorted(imports.items())
        for name in sorted(names)
        if module not in {"kernel_archive", "kernel_archive.__main__"}
        and name != "kernel_archive"
        and ROOMS.index(room(name)) > ROOMS.index(room(module))
    ]
    assert upwards == []


def test_the_core_never_imports_the_package_that_measures():
    """``kernel_measure`` imports the core, which has to work without it."""
    importing = re.compile(r"^ *(?:from|import) +kernel_measure", re.MULTILINE)
    assert [name for name, text in module_texts(PACKAGE).items() if importing.search(text)] == []


def test_a_class_name_means_one_thing():
    """In both packages together."""
    texts = {**module_texts(PACKAGE), **module_texts(MEASURE)}
    names = Counter(
        name
        for text in texts.values()
        for name in re.findall(r"^ *class (\w+)", text, re.MULTILINE)
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_no_module_is_too_long():
    """Only data may be long."""
    texts = {**module_texts(PACKAGE), **module_texts(MEASURE)}
    lengths = {name: text.count("\n") for name, text in texts.items()}
    assert {name: n for name, n in lengths.items() if n > MAX_LINES} == {}
