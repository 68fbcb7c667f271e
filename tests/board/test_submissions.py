"""Records of submissions: names, texts, folders, all of them a stranger's; facts of the model:
stated, checked, kept, shown.
"""

import json

import pytest
from support.boards import DRAWS

from kernel_archive.board import add_submission, build_board
from kernel_archive.board.submissions import (
    Identity,
    ModelFacts,
    Submission,
    check_texts,
    load_submission,
    slug_of,
    submission_folders,
    to_toml,
)
from kernel_archive.errors import DataError


def record(**changes):
    """A sound record."""
    archive = Identity(
        name="a", version="1", digest="sha256:0", split="eval", split_digest="sha256:1"
    )
    return Submission(**{"name": "x", "forecasts_sha256": "0" * 64, "archive": archive, **changes})


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("GPT-oss 120B (untrained)", "gpt-oss-120b-untrained"),
        ("../../etc/passwd", "etc-passwd"),
        ("..", ""),
        ("/", ""),
        ("日本", ""),
        ("Ünïcode", "unicode"),
        ("a" * 100, "a" * 60),
        ("-x-", "x"),
        ("CON", "con"),
        ("a\\b\x00c", "a-b-c"),
    ],
)
def test_a_slug_is_a_plain_name_that_stays_in_its_folder(name, slug):
    """Nothing but lower case letters, digits and single hyphens comes out."""
    assert slug_of(name) == slug


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("name", "", "bad-name"),
        ("name", " x", "bad-name"),
        ("name", "x" * 81, "too-long"),
        ("name", "a\u202eb", "bad-character"),
        ("name", "a\x1b[31mb", "bad-character"),
        ("name", "a\nb", "bad-character"),
        ("name", "a\u200bb", "bad-character"),
        ("model", "\u2066x", "bad-character"),
        ("notes", "x" * 2001, "too-long"),
        ("notes", "a\x00", "bad-character"),
        ("url", "javascript:alert(1)", "bad-url"),
        ("url", "data:text/html,x", "bad-url"),
        ("url", "https://", "bad-url"),
        ("url", "https://a b", "bad-url"),
        ("url", "http://[", "bad-url"),
    ],
)
def test_bad_texts_are_refused_with_their_field(field, value, code):
    """The finding names field and rule; the value in it is printable."""
    with pytest.raises(DataError) as caught:
        check_texts(record(**{field: value}))
    finding = next(f for f in caught.value.findings if f.code == code)
    assert finding.field == field
    assert finding.value.isprintable()


@pytest.mark.parametrize(
    "text",
    ['quote " back \\ slash', "tab\tnone", "l1\nl2", "\x7f", "模型 \U0001f680", "]]> ''' \"\"\""],
)
def test_toml_gives_back_what_went_in(tmp_path, text):
    """Every string survives the file."""
    import tomllib

    assert tomllib.loads(to_toml(record(notes=text)))["notes"] == text


def fill(folder, toml=None):
    """A folder with the three files."""
    folder.mkdir(parents=True)
    (folder / "submission.toml").write_text(toml if toml is not None else to_toml(record()))
    (folder / "forecasts.jsonl.zst").write_bytes(b"")
    (folder / "score.json").write_text("{}")
    return folder


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        ("name = ", "submission.toml"),
        ("\udcff".encode("utf-8", "surrogateescape"), "submission.toml"),
        ("a = 1\n" * 20000, "longer than"),
        ("name = 'x'\nforecasts_sha256='0'\nextra = 1\n[archive]\nname='a'\n", "submission.toml"),
        ("a = " + "[" * 5000, "submission.toml"),
        ("a = " + "1" * 5000, "submission.toml"),
        (to_toml(record(name="a\u202eb")), "U\\+202E"),
        (to_toml(record(url="javascript:x")), "not a web address"),
    ],
    ids=["broken", "not-utf8", "long", "unknown-key", "deep", "long-number", "bidi", "url"],
)
def test_a_bad_record_is_refused_with_its_file(tmp_path, toml, says):
    """Whatever a pull request brings is a finding, never a traceback."""
    folder = fill(tmp_path / "x", "")
    (folder / "submission.toml").write_bytes(
        toml if isinstance(toml, bytes) else toml.encode("utf-8", "surrogatepass")
    )
    with pytest.raises(DataError, match=says) as caught:
        load_submission(folder)
    assert caught.value.findings


def test_extra_missing_and_linked_files_are_named(tmp_path):
    """A folder holds three regular files and nothing else."""
    folder = fill(tmp_path / "x")
    (folder / "run.py").write_text("")
    (folder / "score.json").unlink()
    (folder / "forecasts.jsonl.zst").unlink()
    (folder / "forecasts.jsonl.zst").symlink_to("/etc/passwd")
    with pytest.raises(DataError) as caught:
        load_submission(folder)
    assert {f.code for f in caught.value.findings} == {"extra-file", "missing-file", "not-a-file"}


def test_a_store_holds_folders_with_plain_names_only(tmp_path):
    """Files, links and odd names are faults; hidden work in progress is not seen.

    No store is an empty one.
    """
    assert submission_folders(tmp_path / "none") == ([], {})
    (tmp_path / "b").mkdir()
    (tmp_path / "a-1").mkdir()
    (tmp_path / ".adding-x").mkdir()
    assert [p.name for p in submission_folders(tmp_path)[0]] == ["a-1", "b"]
    (tmp_path / "Upper").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("/etc")
    found, strays = submission_folders(tmp_path)
    assert [p.name for p in found] == ["a-1", "b"]
    assert {name: faults[0].code for name, faults in strays.items()} == dict.fromkeys(
        ("Upper", "file", "link"), "bad-folder"
    )


def test_a_split_that_nobody_forecasts_is_a_fault(tmp_path):
    """The record of an entry names a split of this package."""
    fill(tmp_path / "x", to_toml(record()).replace('split = "eval"', 'split = "train"'))
    with pytest.raises(DataError, match="split must be one of: eval, eval_problems, eval_cuda"):
        load_submission(tmp_path / "x")


PROMPT = "v1-forecast-json-paper@0123456789abcdef"
FACTS = ModelFacts(
    open_weights=False,
    saw_archive="no",
)


def test_facts_are_kept_and_shown(tmp_path, files, archive, target):
    """From the call to the record and the page; the prompt comes from the forecasts."""
    lines = [
        {**json.loads(line), "prompt": PROMPT} for line in files["good"].read_text().splitlines()
    ]
    path = tmp_path / "f.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    board = tmp_path / "board"
    made = add_submission(path, target, name="x", model="m", facts=FACTS, board=board, draws=DRAWS)
    stored = load_submission(made.folder)
    assert stored == made.submission
    assert stored.model_facts == ModelFacts(
        **{name: getattr(FACTS, name) for name in FACTS.__struct_fields__} | {"prompt": PROMPT}
    )
    rows = {
        "Prompt": PROMPT,
        "Weights": "closed",
        "Trained on this archive": "no, as declared",
    }
    build_board(archive, board, draws=DRAWS, jobs=1)
    page = (board / "entries" / "x.html").read_text()
    for title, text in rows.items():
        assert f'<th scope="row">{title}</th><td>{text}</td>' in page
