"""Building and verifying a board."""

import base64
import json
import re
import shutil
import zlib

import msgspec
import pyarrow as pa
import pytest
from support.archives import Run, Search, make_archive, program
from support.boards import DRAWS, informed, write_lines
from support.small_archive import write_archive

from kernel_archive import storage
from kernel_archive.archive.open import open_archive
from kernel_archive.board import build as module
from kernel_archive.board import ranks
from kernel_archive.board.build import build_board, verify_board
from kernel_archive.board.store import add_submission
from kernel_archive.errors import DataError, UsageError
from kernel_archive.scoring import load_target, read_record
from kernel_archive.selection.make import make_splits
from kernel_archive.selection.withheld import withhold


def page_data(text):
    """The data in a page, as its script reads it."""
    packed = re.search(r'id="payload">([^<]+)<', text)[1]
    return json.loads(zlib.decompress(base64.b64decode(packed), -15))


def edit_score(folder, **changes):
    """Change fields of a stored score."""
    record = msgspec.structs.replace(read_record(folder / "score.json"), **changes)
    (folder / "score.json").write_bytes(record.to_json())


def test_it_writes_standings_and_page(archive, board):
    """Three files, one board per split that has entries; a page and a score record of every entry."""
    result = build_board(archive, board, draws=DRAWS, jobs=1)
    assert [f.name for f in result.files] == ["standings.json", "standings.csv", "index.html"]
    assert [b.target.kind for b in result.boards] == ["eval", "discovery"]
    assert json.loads((board / "standings.json").read_text())["format"] == 1
    assert (board / "index.html").stat().st_size == result.page_bytes
    lines = (board / "standings.csv").read_text().splitlines()
    assert sum(line.startswith("entry,") for line in lines) == 5 + 1
    slugs = [line.slug for b in result.boards for line in b.entries]
    assert sorted(p.name for p in (board / "entries").iterdir()) == sorted(
        f"{s}.{e}" for s in slugs for e in ("html", "json")
    )
    assert (
        read_record(board / "entries/good.json").metrics["crps"] == result.boards[0].entries[0].record.metrics["crps"]
    )


def test_the_page_of_an_entry(archive, board, tmp_path):
    """Every figure with its interval, rank, control and oracle; links to what there is; gone when the entry is gone."""
    build_board(archive, board, draws=DRAWS, jobs=1)
    text = (board / "entries/good.html").read_text()
    assert "Rank 1 of 4" in text
    assert text.count("<tr>") >= 30
    for link in ("../index.html", "good.json", "../submissions/good/forecasts.jsonl.zst", "../standings.csv"):
        assert f'href="{link}"' in text
        assert (board / "entries" / link).is_file()
    assert "<script" not in text
    assert "default-src &#39;none&#39;" in text or "default-src 'none'" in text
    (board / "entries/mine.html").write_text("a page of somebody's own")
    shutil.rmtree(board / "submissions/fair")
    build_board(archive, board, draws=DRAWS, jobs=1)
    assert not (board / "entries/fair.html").exists()
    assert not (board / "entries/fair.json").exists()
    assert (board / "entries/mine.html").exists()
    build_board(archive, board, draws=DRAWS, jobs=1, out=tmp_path / "elsewhere")
    assert "forecasts.jsonl.zst" not in (tmp_path / "elsewhere/entries/good.html").read_text()


def test_same_input_gives_the_same_bytes(archive, board, tmp_path):
    """No time, host, process or order of folders in anything published."""
    build_board(archive, board, draws=DRAWS, jobs=1, out=tmp_path / "one")
    build_board(archive, board, draws=DRAWS, jobs=2, out=tmp_path / "two")
    for name in ("standings.json", "standings.csv", "index.html"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_long_board_shows_its_first_entries_in_whole(archive, board, tmp_path, monkeypatch):
    """Two of five: the same ranks; the others in brief, with pages of their own and ``null`` for ties and groups; ties of the two are those among them."""
    build_board(archive, board, draws=DRAWS, jobs=1, out=tmp_path / "all")
    monkeypatch.setattr(ranks, "WHOLE", 2)
    result = build_board(archive, board, draws=DRAWS, jobs=2, out=tmp_path / "two")
    both = [json.loads((tmp_path / name / "standings.json").read_text()) for name in ("all", "two")]
    assert (tmp_path / "all/standings.csv").read_bytes() == (tmp_path / "two/standings.csv").read_bytes()
    first = [line.slug for line in result.boards[0].entries[:2]]
    for a, b in zip(both[0]["boards"][0]["entries"], both[1]["boards"][0]["entries"], strict=True):
        whole = a["slug"] in first
        assert b["groups"] == (a["groups"] if whole else None)
        assert {"alpha", "beta"} == set(a["groups"])
        for name, rank in a["ranks"].items():
            ties = rank.pop("tied_with")
            named = [slug for slug in ties if slug in first] if whole else None
            assert b["ranks"][name] == rank | {"tied_with": named}
            assert len(ties) == rank["worst"] - rank["best"]
        assert a | {"groups": 0, "ranks": 0} == b | {"groups": 0, "ranks": 0}
    assert both[0]["boards"][1] == both[1]["boards"][1]  # one entry: short enough
    for path in (tmp_path / "all/entries").iterdir():
        assert path.read_bytes() == (tmp_path / "two/entries" / path.name).read_bytes()
    page = (tmp_path / "two/index.html").read_text()
    slugs = [line.slug for line in result.boards[0].entries]
    shown, whole = (page_data((tmp_path / name / "index.html").read_text())["boards"][0] for name in ("two", "all"))
    assert [e["slug"] for e in shown["entries"]] == slugs[:2] == re.findall('data-entry="([^"]+)"', page)[:2]
    assert re.findall(r'<a href="entries/([a-z]+)\.html">', page) == slugs[2:]
    assert "are of the first 2 of 5 entries" in page
    assert (shown["ranked"], shown["pairs"]["crps"]) == (2, [part[:1] for part in whole["pairs"]["crps"]])
    for e, same in zip(shown["entries"], whole["entries"], strict=False):
        assert e["m"] == same["m"]
        assert {k: v[:3] for k, v in e["r"].items()} == {k: v[:3] for k, v in same["r"].items()}


def test_entries_of_another_archive_stand_apart(archive, board, files, tmp_path):
    """Another archive's entry is listed under its digest and never in the ranking."""
    other = write_archive(tmp_path / "other", per_search=12, digest_salt="x", version="0.9")
    target = load_target(other, "eval")
    add_submission(files["prior"], target, name="from elsewhere", board=board, draws=DRAWS)
    result = build_board(archive, board, draws=DRAWS, jobs=1)
    assert "from elsewhere" not in [line.submission.name for line in result.boards[0].entries]
    assert [f.submission.name for f in result.boards[0].foreign] == ["from elsewhere"]
    page = (board / "index.html").read_text()
    assert "1 entry of another archive" in page
    assert "from elsewhere" in page


def test_the_other_scheme_scores_everything_anew(archive, board):
    """--bins gives a board under the other scheme, and says so."""
    result = build_board(archive, board, draws=DRAWS, jobs=1, scheme="released")
    assert result.boards[0].target.scheme == "released"
    assert json.loads((board / "standings.json").read_text())["boards"][0]["scheme"] == "released"


def test_submissions_at_fault_are_named_and_left_out(archive, board):
    """A broken record, an extra file, a corrupt stream and a stray file: the others are on the board."""
    (board / "submissions/good/submission.toml").write_text("name = ")
    (board / "submissions/prior/extra").write_text("")
    (board / "submissions/fair/forecasts.jsonl.zst").write_bytes(b"\x1f\x8b\x08\0\0\0\0\0\0\3\xff\xff\xff\xff\xff")
    (board / "submissions/stray").write_text("")
    result = build_board(archive, board, draws=DRAWS, jobs=1)
    assert [line.slug for line in result.boards[0].entries] == ["uniform", "half"]
    assert {v.slug: v.findings[0].code for v in result.left_out} == {
        "fair": "unreadable", "good": "bad-record", "prior": "extra-file", "stray": "bad-folder",
    }  # fmt: skip
    assert (
        "Left out of this page, since their files are at fault: fair, good, prior, stray."
        in (board / "index.html").read_text()
    )


def test_a_board_with_nothing_but_faults_is_not_built(archive, board):
    """All faults come together, and no file is written."""
    for folder in (board / "submissions").iterdir():
        (folder / "submission.toml").write_text("name = ")
    with pytest.raises(DataError, match="every submission of this board is at fault") as caught:
        build_board(archive, board, draws=DRAWS, jobs=1)
    assert {f.code for f in caught.value.findings} == {"bad-record"}
    assert not (board / "index.html").exists()


@pytest.mark.parametrize("stands", ["page", "standings.json"])
def test_a_build_that_fails_leaves_the_old_files_together(archive, board, monkeypatch, stands):
    """Where one of the files can't be put in place, the others keep their old content: both or neither."""
    build_board(archive, board, draws=DRAWS, jobs=1)
    files = [board / name for name in ("standings.json", "standings.csv", "index.html")]
    before = [f.read_bytes() for f in files[:2]]
    if stands == "page":  # a folder is in the way
        files[2].unlink()
        files[2].mkdir()
        with pytest.raises(OSError, match=r"index\.html"):
            build_board(archive, board, draws=DRAWS, jobs=1, seed=5)
    else:
        monkeypatch.setattr(storage, "sync", no_space)
        with pytest.raises(OSError, match="No space"):
            build_board(archive, board, draws=DRAWS, jobs=1, seed=5)
    assert [f.read_bytes() for f in files[:2]] == before
    assert not list(board.glob(".*.tmp"))


def test_what_killed_builds_left_is_removed(archive, board):
    """Temporary files of the board's own files, and the page of an entry that no standings name; nothing of others."""
    build_board(archive, board, draws=0, jobs=1)
    left = [board / ".index.html.0123abcd.tmp", board / "entries/.good.json.89abcdef.tmp"]
    theirs = [
        board / ".mine.jsonl.0123abcd.tmp",
        board / "entries/.good.txt.89abcdef.tmp",
        board / "entries/score.json",
    ]
    for path in (*left, *theirs):
        path.write_text("{}")
    copied = board / "entries/copy.html"  # not under its own name
    shutil.copy(board / "entries/fair.html", copied)
    shutil.rmtree(board / "submissions/fair")
    (board / "standings.json").unlink()
    result = build_board(archive, board, draws=0, jobs=1)
    assert not any(path.exists() for path in left)
    assert all(path.exists() for path in (*theirs, copied))
    slugs = [line.slug for b in result.boards for line in b.entries]
    pages = {p for p in (board / "entries").glob("[a-z]*") if p not in (*theirs, copied)}
    assert pages == {board / f"entries/{slug}.{ending}" for slug in slugs for ending in ("html", "json")}
    assert "fair" not in slugs


def no_space(path):
    """A disk that is full."""
    raise OSError(28, "No space left on device", str(path))


def test_no_board_and_an_empty_board_say_what_to_do(archive, tmp_path):
    """The way out is in the message."""
    with pytest.raises(UsageError, match="leaderboard add"):
        build_board(archive, tmp_path / "none", draws=DRAWS, jobs=1)
    (tmp_path / "b/submissions").mkdir(parents=True)
    with pytest.raises(UsageError, match="no submission yet"):
        build_board(archive, tmp_path / "b", draws=DRAWS, jobs=1)


def test_sound_submissions_are_verified(archive, board):
    """All of them, or the ones named."""
    assert {v.status for v in verify_board(archive, board)} == {"verified"}
    assert [v.slug for v in verify_board(archive, board, slugs=["good"])] == ["good"]
    with pytest.raises(UsageError, match="no submission 'nobody'"):
        verify_board(archive, board, slugs=["nobody"])


def test_a_prettier_score_is_found(archive, board):
    """One changed figure, overall or of a task or an interval's end, fails with what it should be."""
    folder = board / "submissions/good"
    record = read_record(folder / "score.json")
    better = msgspec.structs.replace(record.metrics["crps"], mean=0.001)
    edit_score(folder, metrics=record.metrics | {"crps": better})
    verdict = next(v for v in verify_board(archive, board) if v.slug == "good")
    assert verdict.status == "failed"
    assert "crps: stored 0.001, now" in verdict.findings[0].message
    group = {
        "alpha": {**record.groups["alpha"], "ece": msgspec.structs.replace(record.groups["alpha"]["ece"], low=0.0)}
    }
    edit_score(folder, metrics=record.metrics, groups=record.groups | group)
    assert "alpha ece" in verify_board(archive, board, slugs=["good"])[0].findings[0].message


@pytest.mark.parametrize(
    "change",
    [
        {"scheme": "released"},
        {"seed": 5},
        {"predicted_bin": "stated"},
        {"kind": "discovery"},
        {"draws": 10**12},
        {"scheme": "mine"},
    ],
)
def test_a_score_under_other_terms_is_found(archive, board, change):
    """Terms that the figures were not made under fail, and none keeps the verifier busy."""
    edit_score(board / "submissions/good", **change)
    assert verify_board(archive, board, slugs=["good"])[0].status == "failed"


def test_changed_and_broken_files_are_found(archive, board):
    """Forecasts with one more byte, and files that are no zstd, no JSON, no TOML."""
    path = board / "submissions/good/forecasts.jsonl.zst"
    lines = pa.input_stream(str(path), compression="zstd").read()
    path.write_bytes(pa.Codec("zstd").compress(lines + b"\n", asbytes=True))
    (board / "submissions/prior/forecasts.jsonl.zst").write_bytes(b"\x28\xb5\x2f\xfdgarbage")
    (board / "submissions/fair/score.json").write_text("[" * 100_000)
    (board / "submissions/uniform/submission.toml").write_text("=")
    verdicts = {v.slug: v for v in verify_board(archive, board)}
    assert [s for s, v in sorted(verdicts.items()) if v.status == "failed"] == ["fair", "good", "prior", "uniform"]
    assert all(v.findings for v in verdicts.values() if v.status == "failed")


def test_another_archives_submission_is_sound_but_not_verified_here(board, tmp_path):
    """Against another archive there is nothing to score it with: said so, not passed as verified."""
    other = write_archive(tmp_path / "other", per_search=12, digest_salt="x")
    assert {v.status for v in verify_board(other, board)} == {"other_archive"}


def test_scores_of_an_older_version_can_be_stored_anew(archive, board, monkeypatch):
    """After a change of the metrics, --update replaces the stored scores of sound submissions and of no other."""
    folder = board / "submissions/good"
    edit_score(folder, metric_version="0")
    assert verify_board(archive, board, slugs=["good"])[0].status == "failed"
    assert verify_board(archive, board, slugs=["good"], update=True)[0].status == "updated"
    assert verify_board(archive, board, slugs=["good"])[0].status == "verified"
    record = read_record(folder / "score.json")
    edit_score(folder, metrics=record.metrics | {"crps": msgspec.structs.replace(record.metrics["crps"], mean=0.0)})
    assert verify_board(archive, board, slugs=["good"], update=True)[0].status == "failed"
    assert record.draws <= module.MAX_DRAWS


def test_withheld_labels_rank_and_are_not_shown(tmp_path):
    """A board from the public part and the labels: the scores of the open archive, and no row's label in any file."""
    speeds = tuple(1.0123457 * s for s in (0.2, 0.4, 0.6, 0.9, 1.2, 1.7, 3.0, 4.9))
    searches = [Search("held"), Search("aside", "histogram"), Search("train", role="training")]
    runs = [Run(s.search_id, program(f"{s.search_id}{i}"), x) for s in searches for i, x in enumerate(speeds)]
    places = [make_archive(tmp_path / name, searches, runs, version="1.0") for name in ("open", "public")]
    for place in places:
        make_splits(place)
    withhold(places[1], tmp_path / "labels")
    whole, archive = map(open_archive, places)
    secret = load_target(whole, "eval")
    p = informed(secret, 2.0)
    target = load_target(archive, "eval", labels=tmp_path / "labels")
    boards = [(whole, secret, tmp_path / "b0", None), (archive, target, tmp_path / "b1", tmp_path / "labels")]
    found = []
    for source, rows, board, labels in boards:
        file = write_lines(tmp_path / "f.jsonl", rows, p)
        add_submission(file, rows, name="reader", board=board, draws=DRAWS)
        found.append(build_board(source, board, labels=labels, draws=DRAWS, jobs=1).boards[0].entries[0].record.metrics)
        assert [v.status for v in verify_board(source, board, labels=labels)] == ["verified"]
    for name, figure in found[1].items():
        assert not name.startswith("speedup_recovered_at_")
        assert figure.mean == (None if found[0][name].mean is None else round(found[0][name].mean, 3))
        assert figure.repeats == ()
    with pytest.raises(UsageError, match="labels of eval are withheld"):
        verify_board(archive, tmp_path / "b1")
    edit_score(tmp_path / "b1/submissions/reader", metric_version="0")
    updated = verify_board(archive, tmp_path / "b1", labels=tmp_path / "labels", update=True)
    assert [v.status for v in updated] == ["updated"]
    for path in (tmp_path / "b1/submissions/reader/score.json", tmp_path / "b1/entries/reader.json"):
        record = read_record(path)
        # What a stranger who has the forecasts could solve for the labels of single rows is not there at all.
        fine = (record.groups, record.confusion, record.buckets, record.recovery, record.risk, record.deferral)
        assert not any(fine)
    shown = page_data((tmp_path / "b1/index.html").read_text())["boards"][0]["rows"]
    assert (shown["bin"], shown["speedup"]) == (None, None)
    assert len(shown["id"]) == len(secret)
    labels = {f"{s:.6g}" for s in secret.speedups.tolist()}
    assert labels <= set(map(str, page_data((tmp_path / "b0/index.html").read_text())["boards"][0]["rows"]["speedup"]))
    for path in (tmp_path / "b1").rglob("*.*"):
        text = (
            json.dumps(page_data(path.read_text())) if path.name == "index.html" else path.read_bytes().decode("latin1")
        )
        assert not {label for label in labels if label in text}, path.name


def test_labels_of_one_split_leave_the_others_open(archive, board, tmp_path):
    """Given labels are for withheld splits: where there are none, that is said, and no entry is dropped for it."""
    (tmp_path / "labels").mkdir()
    with pytest.raises(UsageError, match="--labels is for withheld ones"):
        build_board(archive, board, labels=tmp_path / "labels", draws=DRAWS)


def test_an_open_split_beside_a_withheld_one_keeps_its_entries(tmp_path):
    """The labels' folder says nothing of discovery pairs, which are scored as ever."""
    speeds = tuple(1.0123457 * s for s in (0.2, 0.4, 0.6, 0.9, 1.2, 1.7, 3.0, 4.9))
    searches = [Search("held"), Search("aside", "histogram"), Search("other", "nbody_forces")]
    runs = [
        Run(s.search_id, program(f"{s.search_id}{i}"), x, parent=f"n{i - 1}" if i else None)
        for s in searches
        for i, x in enumerate(speeds)
    ]
    place = make_archive(tmp_path / "a", searches, runs, version="1.0")
    make_splits(place, ["eval", "discovery_pairs"])
    withhold(place, tmp_path / "labels")
    archive = open_archive(place)
    if "discovery_pairs" not in archive.manifest.splits or not archive.manifest.splits["discovery_pairs"].rows:
        pytest.fail("the archive of this test should keep discovery pairs")
    pairs = load_target(archive, "discovery")
    add_submission(
        write_lines(tmp_path / "p.jsonl", pairs, informed(pairs, 2.0)),
        pairs,
        name="p",
        board=tmp_path / "b",
        draws=DRAWS,
    )
    result = build_board(archive, tmp_path / "b", labels=tmp_path / "labels", draws=DRAWS, jobs=1)
    assert [line.slug for line in result.boards[0].entries] == ["p-discovery"]
    assert result.left_out == []
