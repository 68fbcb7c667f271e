"""``replay`` as its users call it."""

import json

import pytest
from support.archives import Run, Search, make_archive, program

from kernel_archive.cli import main
from kernel_archive.cli.replay import _POLICIES
from kernel_archive.scoring.replay import POLICIES


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """Two problems, in each of which twelve authors start and three go on."""
    directory = tmp_path_factory.mktemp("archives") / "archive"
    problems = ("trimul", "fp8_quant")
    searches = [Search(f"{p}/{i}", p, method="agentic") for p in problems for i in range(12)]
    runs = [Run(s.search_id, program(s.search_id), 0.3 + 0.4 * i) for i, s in enumerate(searches)]
    runs += [Run(f"{p}/{i}", program(f"{p}{i}"), 5.0 + i, parent="n0") for p in problems for i in range(3)]
    make_archive(directory, searches, runs)
    return str(directory)


def test_from_template_to_figures(archive, tmp_path, capsys):
    """The template of replay is valid, can be replayed as it is, and does as well as chance; score sends it to replay."""
    file = tmp_path / "mine.jsonl"
    rest = ["--archive", archive]
    assert main(["template", "--split", "replay", "-o", str(file), *rest]) == 0
    assert main(["check", str(file), "--split", "replay", *rest]) == 0
    capsys.readouterr()
    assert (
        main(["replay", str(file), "--forecaster", "slow", "--policy", "expected", "--draws", "20", "--json", *rest])
        == 0
    )
    mine, slow = json.loads(capsys.readouterr().out)
    assert (mine["name"], mine["coverage"], slow["name"]) == ("mine", 1.0, "slow")
    assert (
        mine["policies"][0]["rescaled"]["mean"] == slow["policies"][0]["rescaled"]["mean"] == pytest.approx(0, abs=25)
    )
    assert set(mine["policies"][0]["hidden"]) == {"0.25", "0.5"}
    assert main(["replay", "--no-hide", "--draws", "20", *rest]) == 0
    text = capsys.readouterr().out
    assert "oracle" in text
    assert "2 worlds with 30 recorded children" in text
    assert "hidden" not in text
    assert main(["score", str(file), "--split", "replay", *rest]) == 2
    assert "kernel-archive replay" in capsys.readouterr().err


def test_faults_are_named(archive, tmp_path, capsys):
    """A bad file is the data's fault, an unknown forecaster and an archive without such searches the user's."""
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"row_id": "nobody", "probabilities": [1, 0, 0, 0, 0, 0, 0, 0]}\n')
    assert main(["replay", str(bad), "--archive", archive]) == 1
    assert "nobody" in capsys.readouterr().err
    assert main(["replay", "--forecaster", "oracel", "--archive", archive]) == 2
    assert main(["replay", "--searches", "generated", "--archive", archive]) == 2


def test_the_command_knows_all_policies():
    """The list of the option is that of the module, which it does not import."""
    assert tuple(POLICIES) == _POLICIES
