"""The package keeps its order: rooms, names of classes, sizes."""

from __future__ import annotations

import ast
import re
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import kernel_archive

PACKAGE = Path(kernel_archive.__file__).parent
MEASURE = PACKAGE.parent / "measure" / "kernel_measure"
#: Lines of a module, at most; a longer one holds two ideas.
MAX_LINES = 425
#: Rooms in their order: a room imports only from itself and from those before it.
ROOMS = (
    "vocabulary",
    "files",
    "readers",
    "archive",
    "drafting",
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
FILES = {"databases", "executors", "storage", "untrusted", "untrusted_tables"}

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
