"""Records of submissions: names, texts, folders, all of them a stranger's."""

import msgspec
import pytest

from kernel_archive.board.submissions import (
    Identity,
    ModelRunFacts,
    Submission,
    load_submission,
    parse_submission,
    slug_of,
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
        ("日本", ""),
        ("Ünïcode", "unicode"),
        ("a" * 100, "a" * 60),
        ("a\\b\x00c", "a-b-c"),
    ],
)
def test_a_slug_is_a_plain_name_that_stays_in_its_folder(name, slug):
    """Nothing but lower case letters, digits and single hyphens comes out."""
    assert slug_of(name) == slug


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("name", "", "bad-record"),
        ("name", " x", "bad-record"),
        ("name", "x" * 81, "bad-record"),
        ("name", "a\nb", "bad-record"),
        ("name", "a\u202eb", "bad-character"),
        ("name", "a\x1b[31mb", "bad-character"),
        ("model", "\u2066x", "bad-character"),
        ("notes", "x" * 2001, "bad-record"),
        ("notes", "a\x00", "bad-character"),
        ("url", "javascript:alert(1)", "bad-record"),
        ("url", "https://", "bad-record"),
        ("url", "https://a b", "bad-record"),
        ("url", "http://[", "bad-record"),
        ("model_run", ModelRunFacts(temperature=101), "bad-record"),
        ("model_run", ModelRunFacts(served_model="a\u200bb"), "bad-character"),
    ],
)
def test_bad_texts_are_refused_with_their_field(field, value, code):
    """The finding names the field; the value in it is printable."""
    with pytest.raises(DataError) as caught:
        parse_submission(msgspec.to_builtins(record(**{field: value})))
    (finding,) = caught.value.findings
    assert finding.code == code
    assert finding.field in (field, f"{field}.temperature", "served_model")
    assert (finding.value or "x").isprintable()


@pytest.mark.parametrize(
    "text", ['quote " back \\ slash', "tab\tnone", "l1\nl2", "模型 \U0001f680", "''' \"\"\""]
)
def test_toml_gives_back_what_went_in(tmp_path, text):
    """Every string survives the file."""
    made = record(notes=text)
    assert load_submission(fill(tmp_path / "x", to_toml(made).encode())) == made


def fill(folder, toml):
    """A folder with the three files."""
    folder.mkdir(parents=True)
    (folder / "submission.toml").write_bytes(toml)
    (folder / "forecasts.jsonl.zst").write_bytes(b"")
    (folder / "score.json").write_text("{}")
    return folder


SOUND = to_toml(record())


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        (b"name = ", "submission.toml"),
        (b"\xff", "submission.toml"),
        (b"a = 1\n" * 20000, "submission.toml"),
        (f"extra = 1\n{SOUND}".encode(), "extra"),
        (b"a = " + b"[" * 5000, "submission.toml"),
        (b"a = " + b"1" * 5000, "submission.toml"),
        (SOUND.replace('split = "eval"', 'split = "train"').encode(), "split must be one of: eval"),
    ],
    ids=["broken", "not-utf8", "long", "unknown-key", "deep", "long-number", "split"],
)
def test_a_bad_record_is_refused_with_its_file(tmp_path, toml, says):
    """Whatever a pull request brings is a finding, never a traceback."""
    with pytest.raises(DataError, match=says) as caught:
        load_submission(fill(tmp_path / "x", toml))
    assert caught.value.findings[0].code == "bad-record"


def test_a_submission_is_a_plain_folder_of_three_files(tmp_path):
    """Extra, missing and linked files are named; so are files, links and odd names of folders."""
    folder = fill(tmp_path / "x", SOUND.encode())
    (folder / "run.py").write_text("")
    (folder / "score.json").unlink()
    (folder / "forecasts.jsonl.zst").unlink()
    (folder / "forecasts.jsonl.zst").symlink_to("/etc/passwd")
    with pytest.raises(DataError) as caught:
        load_submission(folder)
    assert {f.code for f in caught.value.findings} == {"extra-file", "missing-file", "not-a-file"}
    (tmp_path / "Upper").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("/etc")
    for name in ("Upper", "file", "link"):
        with pytest.raises(DataError) as caught:
            load_submission(tmp_path / name)
        assert caught.value.findings[0].code == "bad-folder"
