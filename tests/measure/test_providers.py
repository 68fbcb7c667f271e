"""Tests of templates: programs with marked knobs, rendered and mutated."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kernel_archive.errors import UsageError
from kernel_archive.measure.providers import FAULTS, Parent, TemplateProvider, Templates

PLAN = Path(__file__).with_name("plan") / "plan.toml"
TEMPLATES_FOLDER = PLAN.parent / "programs" / "rehearsal"
TEMPLATES = Templates(TEMPLATES_FOLDER)


EXAMPLES = Path(__file__).parents[2] / "examples" / "search"


def test_templates_give_distinct_programs_from_their_seed():
    """A provider repeats itself for the same generator, never a program that was seen, and refuses unknown algorithms."""
    provider = TemplateProvider(TEMPLATES, fault=0.0)
    seed = provider.seed()
    seen = {seed.code}
    parent = Parent(seed.code, 1.0, seed.spec)
    made = []
    for i in range(12):
        proposal = provider.propose(parent, random.Random(i), seen)
        assert proposal == provider.propose(parent, random.Random(i), seen)
        seen.add(proposal.code)
        made.append(proposal.code)
    assert len(set(made)) == 12


def test_folder_without_programs_or_with_a_bad_knob_is_refused(tmp_path):
    """What a plan names must be there, and the values of a knob are constants."""
    with pytest.raises(UsageError, match="no programs"):
        Templates(tmp_path)
    (tmp_path / "a.py").write_text("BLOCK = 1  # knob: 1, size\n")
    with pytest.raises(UsageError, match=r"a\.py: the values of a knob"):
        Templates(tmp_path)


def test_render_writes_the_knobs_and_the_mistake():
    """A rendered program differs from its file in the knobs alone; a deliberate mistake changes it once more."""
    spec = {"algo": "rows", "knobs": {"AGAIN": 3, "PARTS": 8}}
    code = TEMPLATES.render(spec)
    assert "AGAIN = 3\nPARTS = 8\n" in code
    assert "knob" not in code
    assert TEMPLATES.seed() == {"algo": "rows", "knobs": {"AGAIN": 0, "PARTS": 2}}
    for name in FAULTS:
        assert TEMPLATES.render({**spec, "fault": name}) != code


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("programs/*/*.py")), ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_example_program_renders(path):
    """Each knob of each example stands in the program once, its own value is one of those that it may take."""
    templates = Templates(path.parent)
    knobs = templates.algorithms[path.stem]
    as_written = {knob: values[0] for knob, values in knobs.items()}
    assert path.read_text().count("# knob:") == len(knobs) > 0
    for knob, values in knobs.items():
        for value in values:
            code = templates.render({"algo": path.stem, "knobs": {**as_written, knob: value}})
            assert f"\n{knob} = {value!r}\n" in code
            compile(code, str(path), "exec")


def test_exhausted_templates_say_so(tmp_path):
    """When every variant was seen there is none to propose."""
    (tmp_path / "whole.py").write_text((TEMPLATES_FOLDER / "whole.py").read_text())
    templates = Templates(tmp_path)
    provider = TemplateProvider(templates, fault=0.0)
    seen = {templates.render({"algo": "whole", "knobs": {"AGAIN": i}}) for i in range(6)}
    assert provider.propose(Parent("x", 1.0, None), random.Random(1), seen) is None
