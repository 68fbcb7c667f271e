"""The card: what it states is what the data gives, it loads, and its examples run as printed."""

import re
import shutil
import subprocess
import sys

import msgspec
import yaml
from publishing.test_pull import publish
from support.archives import RECIPE, make_archive, six_tasks

from kernel_archive.archive.open import open_archive
from kernel_archive.bins import assign_bins
from kernel_archive.publishing.card import CARD_FILE, check_card, configs, render_card, write_card
from kernel_archive.schema import TABLES
from kernel_archive.selection.make import make_splits


def readme(path):
    return (path / "README.md").read_text()


def front_matter(path):
    return yaml.safe_load(readme(path).split("---\n")[1])


def blocks(text, language):
    """The fenced code blocks of a language, as printed."""
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_front_matter_lists_every_table_with_its_files(archive_path):
    """Each table is a configuration with its files by name; kernels is the default."""
    data = front_matter(archive_path)
    assert data["license"] == "cc-by-4.0"
    assert data["size_categories"] == ["n<1K"]
    assert "code" in data["language"]
    by_name = {c["config_name"]: c for c in data["configs"]}
    tables = open_archive(archive_path).manifest.tables
    assert list(by_name) == [n for n in TABLES if n in tables and sum(tables[n].rows.values())]
    assert {"eval", "discovery_pairs", "train_pairs"} <= set(by_name)
    assert [n for n, c in by_name.items() if c.get("default")] == ["kernels"]
    for name, config in by_name.items():
        for files in config["data_files"]:
            assert files["split"] in TABLES[name].splits
            for path in files["path"]:
                assert (archive_path / path).is_file()


def test_card_states_every_column(archive_path):
    """Every column of every table is in the card with its meaning (the canary once, for all)."""
    text = readme(archive_path)
    for name in open_archive(archive_path).manifest.tables:
        table = TABLES[name]
        section = text.split(f"### `{table.name}`\n", 1)[1].split("\n### ", 1)[0]
        for column in table.columns:
            assert column.name == "canary" or f"| `{column.name}` |" in section, (
                table.name,
                column.name,
            )


def test_card_counts_are_those_of_the_data(archive_path):
    """Counts in the card are recounted from the tables, without the code that made the card."""
    archive, text = open_archive(archive_path), readme(archive_path)
    kernels = archive.arrow("kernels").to_pylist()
    assert f"**{len(kernels)} measured GPU kernels**" in text
    speedups = [row["speedup"] for row in kernels]
    paper, released = assign_bins(speedups), assign_bins(speedups, "released")
    assert f"{sum(paper != released)} of {len(kernels)} kernels have another bin" in text
    for b in range(1, 9):
        line = next(x for x in text.splitlines() if x.startswith(f"| {b} ") and "S " in x)
        assert line.endswith(f"| {sum(paper == b)} | {sum(released == b)} |")
    flagged = sum("reference_drift" in row["flags"] for row in kernels)
    line = next(x for x in text.splitlines() if x.startswith("| `reference_drift` |"))
    assert f"| {flagged} ({100 * flagged / len(kernels):.1f} %) |" in line
    rows = archive.arrow("eval").to_pylist()
    section = text.split("### `eval`\n")[2]
    for task in {row["task"] for row in rows}:
        cells = [sum(r["task"] == task and r["bin"] == b for r in rows) for b in range(1, 9)]
        line = next(x for x in section.splitlines() if x.startswith(f"| `{task}` |"))
        assert [int(c.strip(" *")) for c in line.split("|")[2:-1]] == [*cells, sum(cells)]
    pairs = [row["g"] for row in archive.arrow("discovery_pairs").to_pylist()]
    for x in (1.25, 1.5, 2):
        n = sum(g >= x for g in pairs)
        assert f"| {x:g} | {n} | {n / len(pairs):.4f} |" in text


def test_notes_and_exclusions_are_known_problems(tmp_path):
    """What recipes note, what was excluded and why, and damaged logs stand under known problems."""
    path = make_archive(
        tmp_path / "a" / "b",
        *six_tasks(),
        plant=lambda rows: rows["evaluations", "train"][0].update(
            excluded="looks at | the answer <b>"
        ),
        builders=[{**RECIPE, "notes": ["tf32 passes the check."]}],
        findings={"total": 7, "by_code": {"bad-json": 7}, "first": []},
    )
    write_card(path)
    section = readme(path).split("## Known problems")[1].split("\n## ")[0]
    assert f"- **{RECIPE['name']}**: tf32 passes the check." in section
    assert (
        rf"- **{RECIPE['name']}**: 1 evaluation is in `evaluations` only: "
        r"looks at \| the answer \<b\>" in section
    )
    assert "- 7 faults were found" in section


def test_same_archive_gives_same_bytes(archive_path, tmp_path):
    """The card is the same in another directory and with another hash seed."""
    other = tmp_path / "elsewhere"
    shutil.copytree(archive_path, other)
    assert render_card(open_archive(archive_path)) == render_card(open_archive(other))
    code = (
        "from kernel_archive.publishing.card import write_card; from pathlib import Path; "
        f"write_card(Path({str(other)!r}))"
    )
    subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONHASHSEED": "7", "PATH": "", "HOME": "/"},
        check=True,
    )
    assert (other / CARD_FILE).read_bytes() == (archive_path / CARD_FILE).read_bytes()


def test_card_does_not_depend_on_the_order_of_rows(tmp_path):
    """The same rows in another order give the same text, digests of files aside."""

    def shuffle(rows):
        rows.update({key: value[::-1] for key, value in rows.items()})

    cards = []
    for i, plant in enumerate((None, shuffle)):
        path = make_archive(tmp_path / str(i), *six_tasks(), plant=plant)
        make_splits(path)
        cards.append(render_card(open_archive(path)))
    assert cards[0] == cards[1]


def test_check_card_finds_what_is_stale(archive_path, tmp_path):
    """An edited or missing file is found; another version's prose is a warning."""
    assert check_card(open_archive(archive_path)) == []
    path = tmp_path / "copy"
    shutil.copytree(archive_path, path)
    (path / "README.md").write_text(readme(path).replace("84 measured", "85 measured"))
    archive = open_archive(path)
    (stale,) = check_card(archive)
    assert (stale.code, stale.severity) == ("stale-card", "error")
    archive.manifest = msgspec.structs.replace(archive.manifest, package="0.0.1")
    assert [finding.severity for finding in check_card(archive)] == ["warning"]
    (path / "README.md").unlink()
    (missing,) = check_card(archive)
    assert (missing.code, missing.severity) == ("missing-card", "error")


def test_card_follows_the_tables_that_are_there(tmp_path):
    """An archive without splits has a card without them."""
    path = make_archive(tmp_path / "a" / "b", *six_tasks())
    write_card(path)
    assert [c["config_name"] for c in configs(open_archive(path))] == [
        "kernels",
        "evaluations",
        "searches",
        "references",
        "gpus",
    ]
    assert "## Score forecasts" not in readme(path)
    assert check_card(open_archive(path)) == []


def test_hostile_names_stay_text(tmp_path):
    """Texts of a foreign recipe can't break out of tables, into HTML or a template."""
    evil = "x|y`<script>alert(1)</script>\n# h1 {{ name }} \x1b[31m"

    def plant(rows):
        for row in rows["kernels", "train"] + rows["kernels", "test"]:
            row["problem"] = row["gpu"] = row["generation_method"] = evil

    builder = {
        **RECIPE,
        "name": evil,
        "licence": evil,
        "description": evil,
        "notes": [evil],
        "citation": evil,
    }
    card = render_card(
        open_archive(
            make_archive(tmp_path / "a" / "b", *six_tasks(), plant=plant, builders=[builder])
        )
    )
    text = card.decode()
    assert "<script>" not in re.sub(r"`[^`\n]*`", "", text)
    assert "\x1b" not in text
    assert "\n# h1" not in text
    assert yaml.safe_load(text.split("---\n")[1])["license"] == "other"


def test_examples_run_as_printed(client, hub, archive_path):
    """Every Python example of the card runs against the published repository."""
    publish(hub, archive_path)
    programs = blocks(readme(archive_path), "python")
    assert len(programs) == 4
    done = client.code("".join(f"exec({text!r}, {{}})\nprint('----')\n" for text in programs))
    assert done.status == 0, done.err
    assert all(printed.strip() for printed in done.out.split("----")[:-1]), done.out


def test_scoring_example_runs_as_printed(client, hub, archive_path):
    """The commands of the card run, as printed, one after the other."""
    publish(hub, archive_path)
    (commands,) = blocks(readme(archive_path), "bash")
    for line in commands.strip().splitlines():
        program, *args = line.split()
        assert program == "kernel-archive"
        done = client.cli(*args)
        assert done.status == 0, line + done.err
