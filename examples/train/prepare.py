"""An archive -> what training and forecasting read.

``train.jsonl.gz``, ``questions.jsonl.gz`` and ``record.json``.

The machine that trains then needs neither the archive nor what reads it.
"""

from __future__ import annotations

import argparse
import json
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lines import write_lines

import kernel_archive
from kernel_archive.llm.questions import load_questions
from kernel_archive.llm.training import load_training_examples

if TYPE_CHECKING:
    from collections.abc import Iterable


def questions(archive: kernel_archive.Archive, splits: list[str]) -> Iterable[dict[str, Any]]:
    """What the forecaster is asked, without a label.

    Answers come back under the custom id of their repeat.
    """
    for split in splits:
        asked = load_questions(archive, split)
        for question in asked:
            yield {
                "split": split,
                "row_id": question.row_id,
                "digest": asked.prompt.digest,
                "prompt": question.text,
            }


def main() -> None:
    """Write the three files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument(
        "--archive", help="Directory of the archive.  [default: gpu-forecasters/kernels]"
    )
    given = parser.parse_args()
    config = tomllib.loads(given.config.read_text())["data"]
    archive = kernel_archive.open_archive(given.archive)
    folder = Path(config["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    examples = load_training_examples(archive, kinds=config["kinds"], seed=config["seed"])
    rows = write_lines(
        folder / "train.jsonl.gz", examples.labelled_prompts(chat=False, answer=True)
    )
    asked = write_lines(folder / "questions.jsonl.gz", questions(archive, config["splits"]))
    (folder / "record.json").write_text(json.dumps(examples.record(), indent=1) + "\n")
    print(
        f"{folder}: {rows:,} training pairs, {asked:,} questions, of {archive.manifest.name} "
        f"{archive.manifest.version}"
    )


if __name__ == "__main__":
    main()
