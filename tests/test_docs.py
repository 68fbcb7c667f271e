"""The documentation says what the code says: generated parts are whole, files that pages name exist, citations lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

import docs
from kernel_archive import _PUBLIC, cli
from kernel_archive.archive.recipe import Exclude, Recipe, Source
from kernel_archive.readers import READERS
from kernel_archive.schema import TABLES
from kernel_archive.scoring import METRICS

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))


def page(name):
    """A page with its generated parts."""
    return docs.fill((ROOT / "docs" / f"{name}.md").read_text())


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.stem)
def test_every_page_can_be_filled(path):
    """Each generated part of each page is made, and none is empty."""
    text = docs.fill(path.read_text())
    assert "[[generated" not in text
    assert len(text) > 300


def test_a_part_that_nothing_makes_is_an_error():
    """A misspelt name ends the build of the site."""
    with pytest.raises(KeyError, match="no generated part"):
        docs.fill("[[generated: metrix]]")


def test_a_part_says_on_disk_what_it_is_made_from():
    """Who reads a page as a file is told the name and the file of what the built page shows, and both are there."""
    form = r"\[\[generated: [^\],]+, from `(\w+)` in `([\w./]+)`; `make docs` shows it\]\]"
    for path in PAGES:
        for line in re.findall(r"^\[\[generated.*", path.read_text(), re.MULTILINE):
            found = re.fullmatch(form, line)
            assert found, (path.name, line)
            assert re.search(rf"\b{found[1]}\b", (ROOT / found[2]).read_text()), line


def test_every_metric_has_its_formula_and_a_worked_example():
    """Every metric of the registry is on the page with its formula; its example is explained, and its figure computed."""
    text = page("metrics")
    assert METRICS.keys() == docs.WORKED.keys()
    for metric in METRICS.values():
        section = text.split(f"### {metric.title}\n")[1].split("\n### ")[0]
        assert metric.formula in section
        assert re.search(r"\*\*(-?[0-9.]+( %|x| nats)?|undefined)\*\*\.", section), metric.name


def test_the_figures_of_the_examples_are_those_of_the_arithmetic():
    """What the page explains in words comes to what it prints: computed here from the words' own numbers."""
    text = page("metrics")

    def printed(title):
        return re.search(r"\*\*(.*?)\*\*", text.split(f"### {title}\n")[1].split("Example:")[1])[1]

    assert printed("ECE") == f"{(0.4 + 0.7 + 0.8 + 0.5) / 4:.3f}"
    assert printed("Speedup recovered") == f"{(4 * 130 / 3 + 100) / 5:.1f} %"
    assert printed("Brier") == f"{(0.16 + 0.49 + 0.64 + (0.25 + 0.16 + 0.81) / 2) / 4:.3f}"
    assert printed("CRPS") == f"{(0.16 + 0.49 + 0.64 + 0.25 + 0.81) / 28:.4f}"
    assert printed("Adaptive ECE") == f"{(0.5 + 0.5 + 0.05 + 0.4 + 0.4 + 0.7 + 0.7 + 0.75 + 0.8 + 0.8) / 10:.3f}"
    assert printed("AURC, error rate") == f"{(1 + 1 + 2 / 3 + 3 / 4) / 4:.3f}"


def test_every_table_key_format_and_name_is_documented():
    """Columns, recipe keys, formats and public names are all there."""
    tables, recipes, api = page("tables"), page("recipes"), page("api")
    for table in TABLES.values():
        section = tables.split(f"## `{table.name}`\n")[1].split("\n## ")[0]
        for column in table.columns:
            assert f"| `{column.name}` |" in section
    for kind in (Recipe, Source, Exclude):
        for field in msgspec.structs.fields(kind):
            assert re.search(rf"\| `{field.encode_name}` \| \S", recipes), (kind, field.name)
    assert all(f"| `{name}` |" in recipes for name in READERS)
    assert all(f"## `kernel_archive.{name}`" in api for name in _PUBLIC)


def test_files_that_pages_name_exist():
    """A page names no file of the repository that is not there, with or without the package's folder."""
    patterns = r"`((?:kernel_archive|splits|cards|tests|tools|builders|docs)/[\w./-]+|[a-z_]+/[a-z_]+\.py)`"
    for path in PAGES:
        for name in re.findall(patterns, path.read_text()):
            if "/" in name and not any(word in name for word in ("NAME", "VERSION", "my_format")):
                assert (ROOT / name).exists() or (ROOT / "kernel_archive" / name).exists(), (path.name, name)


def test_the_picture_names_real_files():
    """Every file in the picture of a row's life exists in its room."""
    text = (ROOT / "docs/assets/life-of-a-row.svg").read_text()
    names = re.findall(r"\b((?:[a-z_]+/)?[a-z_]+\.py)", text)
    assert len(names) > 12
    for name in names:
        assert [*(ROOT / "kernel_archive").rglob(name)], name


def test_citations_in_the_code_lead_to_pages():
    """Whatever page or heading a docstring or comment cites is there; nothing cites documents of another time."""
    for path in [*(ROOT / "kernel_archive").rglob("*.py"), *(ROOT / "benchmarks").glob("*.py")]:
        text = path.read_text()
        assert not re.search(r"\b(METRICS|DESIGN|RAW_LOGS|STYLE)\.md|\((METRICS|DESIGN): ", text), path
        for name, heading in re.findall(r"(docs/[a-z-]+\.md)(?:, \"([^\"]+)\")?", text):
            assert (ROOT / name).is_file(), (path, name)
            assert not heading or f"## {heading}\n" in (ROOT / name).read_text(), (path, heading)


def test_commands_are_made_from_click():
    """The page of commands is generated from the command line itself, and the start page names commands that exist."""
    assert "::: mkdocs-click" in (ROOT / "docs/commands.md").read_text()
    for command in re.findall(r"\$ kernel-archive ([a-z-]+)", (ROOT / "docs/index.md").read_text()):
        assert command in cli.COMMANDS
