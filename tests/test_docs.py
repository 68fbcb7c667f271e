"""Tests of the documentation: generated lists, words, and the commands and names it states."""

import re
import shlex
import tomllib
from pathlib import Path

import click
import msgspec
import prose
import pytest

import docs
from kernel_archive import _PUBLIC, cli
from kernel_archive.archive.recipe import Exclude, Recipe, Source
from kernel_archive.readers import READERS
from kernel_archive.schema import TABLES
from kernel_archive.scoring import METRICS
from kernel_measure.cli import cli as measuring

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
READMES = [ROOT / "measure/README.md", *sorted((ROOT / "builders").glob("*/README.md"))]


def text_of(name):
    """Read a page."""
    return (ROOT / "docs" / f"{name}.md").read_text()


@pytest.mark.parametrize("path", docs.PAGES, ids=lambda p: p.stem)
def test_generated_lists_agree_with_the_code(path):
    """A page's generated lists are those that the code gives today."""
    text = path.read_text()
    assert docs.fill(text) == text, "outdated; run: python tools/docs.py"
    assert text.count("<!-- generated: ") == text.count("<!-- end -->")


def test_a_list_is_replaced_and_a_misspelt_one_refused():
    """What stands between the two comments is replaced, and nothing else."""
    filled = docs.fill("a\n<!-- generated: splits -->\nold\n<!-- end -->\nb\n")
    assert "eval_problems" in filled
    assert "old" not in filled
    assert filled.startswith("a\n<!-- generated: splits -->\n")
    assert filled.endswith("\n<!-- end -->\nb\n")
    line = docs.fill("of <!-- generated: number of kernels -->0<!-- end --> kernels")
    assert re.fullmatch(r"of <!-- generated: [a-z ]+ -->\d+,\d+<!-- end --> kernels", line)
    with pytest.raises(KeyError, match="no generated list"):
        docs.fill("<!-- generated: metrix -->\n<!-- end -->\n")


@pytest.mark.parametrize("path", prose.pages(), ids=lambda p: p.stem)
def test_words(path):
    """Pages keep to the list of words; README and tutorial have no long sentence."""
    assert not list(prose.faults(path))


def test_length():
    """README and changelog are short, and all pages together keep to their budget."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= 90
    assert prose.count_words() <= prose.MAX_TOTAL
    changes = (ROOT / "CHANGELOG.md").read_text().splitlines()
    assert len(changes) <= 130
    assert not [line for line in changes if len(line.split()) > 21]


def test_installs_ask_for_extras_that_exist():
    """Whatever stands in brackets behind the package's name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for path in PAGES:
        for extras in re.findall(r"pip install '?kernel-archive\[([\w,-]+)\]", path.read_text()):
            assert set(extras.split(",")) <= project["optional-dependencies"].keys(), path.name


def commands():
    """Find every command line of the pages."""
    for path in PAGES:
        for block in re.findall(r"```(?:console|bash|sh)\n(.*?)```", path.read_text(), re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                match = re.match(r"\$ (kernel-archive .*)", line.strip())
                if match:
                    yield path.name, shlex.split(match[1], comments=True)[1:]


@pytest.mark.parametrize(("page", "words"), [*commands()])
def test_commands_exist(page, words):
    """A command that a page shows exists, with every option that stands there."""
    group, context = cli.cli, click.Context(cli.cli)
    while isinstance(group, click.Group):
        assert words, (page, group.name)
        command = group.get_command(context, words[0])
        assert command is not None, (page, words)
        group, words = command, words[1:]
    options = {
        name for parameter in group.params for name in (*parameter.opts, *parameter.secondary_opts)
    }
    for word in words:
        if word.startswith("-") and not re.match(r"-?[0-9.]", word):
            assert word.split("=")[0] in {*options, "--help"}, (page, group.name, word)


@pytest.mark.parametrize("program", ["kernel-archive", "kernel-measure"])
def test_commands_in_running_text_exist(program):
    """A command that a page or a README names in a sentence is there today."""
    known = cli.COMMANDS if program == "kernel-archive" else measuring.commands
    for path in [*PAGES, *READMES]:
        for name in re.findall(rf"`{program} ([a-z][a-z-]+)", path.read_text()):
            assert name in known, path


def test_every_command_is_described():
    """The page of commands has a section for each command."""
    text = text_of("commands")
    for name in cli.COMMANDS:
        assert f"## `kernel-archive {name}" in text, name


def test_every_metric_has_its_formula_and_a_worked_example():
    """Every metric is on the page with its formula and an example with a computed figure."""
    text = text_of("metrics")
    assert METRICS.keys() == docs.WORKED.keys()
    for metric in METRICS.values():
        section = text.split(f"### {metric.title}\n")[1].split("\n### ")[0]
        assert metric.formula in section
        assert re.search(r"\*\*(-?[0-9.]+( %|x| nats)?|undefined)\*\*\.", section), metric.name


def test_the_figures_of_the_examples_are_those_of_the_arithmetic():
    """The figures of the examples are those that their words come to."""
    text = text_of("metrics")

    def printed(title):
        return re.search(r"\*\*(.*?)\*\*", text.split(f"### {title}\n")[1].split("Example:")[1])[1]

    assert printed("ECE") == f"{(0.4 + 0.7 + 0.8 + 0.5) / 4:.3f}"
    assert printed("Speedup recovered") == f"{(4 * 130 / 3 + 100) / 5:.1f} %"
    assert printed("Brier") == f"{(0.16 + 0.49 + 0.64 + (0.25 + 0.16 + 0.81) / 2) / 4:.3f}"
    assert printed("CRPS") == f"{(0.16 + 0.49 + 0.64 + 0.25 + 0.81) / 28:.4f}"


def test_every_table_key_format_and_name_is_documented():
    """Columns, recipe keys, formats and public names are all there."""
    tables, recipes, api = text_of("tables"), text_of("recipes"), text_of("api")
    for table in TABLES.values():
        section = tables.split(f"## `{table.name}`\n")[1].split("\n## ")[0]
        for column in table.columns:
            assert f"| `{column.name}` |" in section
    for kind in (Recipe, Source, Exclude):
        for field in msgspec.structs.fields(kind):
            assert re.search(rf"\| `{field.encode_name}` \| \S", recipes), (kind, field.name)
    assert all(f"| `{name}` |" in recipes for name in READERS)
    assert all(f"## `kernel_archive.{name}`" in api for name in _PUBLIC)


def place_of(name):
    """Find a file that a page names, with or without a package's folder."""
    places = (ROOT / folder / name for folder in ("", "kernel_archive", "measure/kernel_measure"))
    return next((place for place in places if place.exists()), None)


def test_files_that_pages_name_exist():
    """Files of the repository that a page names exist, and in them what it says is there."""
    folders = "kernel_archive|measure|splits|cards|tests|tools|builders|docs"
    patterns = rf"`((?:{folders})/[\w./-]+|[a-z_]+/[a-z_]+\.py)`"
    others = ("NAME", "VERSION", "my_format", "kernel_archive/forecast", "kernel_archive/d")
    symbols = 0
    for path in [*PAGES, *READMES]:
        text = path.read_text()
        for name in re.findall(patterns, text):
            if not any(word in name for word in others):
                assert place_of(name), (path.name, name)
        for symbol, name in re.findall(r"`(\w+)` in `([\w/-]+\.(?:py|sql|toml))`", text):
            defined = rf"^(?:class |def |CREATE (?:TABLE|VIEW) )?{symbol}\b"
            assert place_of(name), (path.name, name)
            found = re.search(defined, place_of(name).read_text(), re.MULTILINE)
            assert found, (path.name, symbol, name)
            symbols += 1
    assert symbols > 5


def test_the_picture_names_real_files():
    """Every file in the picture of a row's life exists in its room."""
    text = (ROOT / "docs/assets/life-of-a-row.svg").read_text()
    names = re.findall(r"\b((?:[a-z_]+/)?[a-z_]+\.py)", text)
    assert len(names) > 12
    for name in names:
        assert [*(ROOT / "kernel_archive").rglob(name)], name


def test_citations_in_the_code_lead_to_pages():
    """Pages and headings that a docstring or comment cites exist."""
    for path in [*(ROOT / "kernel_archive").rglob("*.py"), *(ROOT / "benchmarks").glob("*.py")]:
        text = path.read_text()
        assert not re.search(r"\b(METRICS|DESIGN|RAW_LOGS|STYLE)\.md|\((METRICS|DESIGN): ", text), (
            path
        )
        for name, heading in re.findall(r"(docs/[a-z-]+\.md)(?:, \"([^\"]+)\")?", text):
            assert (ROOT / name).is_file(), (path, name)
            assert not heading or f"## {heading}\n" in (ROOT / name).read_text(), (path, heading)
