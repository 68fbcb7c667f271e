"""Check the words of the documentation: a short list of our own, headings, and long sentences.

    python tools/prose.py

Every page is checked for words of the list. README and tutorial may hold no sentence over
:data:`MAX_WORDS` words. Code, tables and generated lists are left out.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parent.parent
#: Longer sentences are refused in :data:`SHORT`.
MAX_WORDS: Final = 30
#: Pages for readers who have never seen the project.
SHORT: Final = ("README.md", "docs/index.md", "docs/tutorial.md")
#: All pages together, without code and generated lists, hold at most this many words.
MAX_TOTAL: Final = 14_000
#: Word or phrase -> what to write instead.
WORDS: Final = {
    r"whoever": "the noun: a reader, a forecaster",
    r"so many": "the number",
    r"what there is": "the noun",
    r"who (?:has|wants|goes)": "the noun: a reader who has",
    r"beside every": "next to every",
    r"goes by": "uses",
    r"is none": "is not one",
    r"are none": "are not",
    r"that there (?:is|are)": "the noun alone",
    r"stands? in": "is in",
    r"stands? beside": "is shown next to",
    r"at hand": "available",
    r"of one's own": "your own",
    r"is said": "is reported",
    r"utili[sz]e": "use",
    r"in order to": "to",
    r"leverag\w+": "use",
    r"seamless\w*": "(leave it out)",
    r"simply": "(leave it out)",
    r"really": "(leave it out)",
    r"please note": "(leave it out)",
    r"it should be noted": "(leave it out)",
}


def pages() -> list[Path]:
    """List the pages that are checked."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def prose(text: str) -> str:
    """Return a page without code, generated lists and comments; lines keep their numbers."""

    def blank(match: re.Match[str]) -> str:
        return "\n" * match[0].count("\n")

    text = re.sub(r"<!-- generated: .*?<!-- end -->", blank, text, flags=re.DOTALL)
    text = re.sub(r"^( *)```.*?^ *```$", blank, text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<!--.*?-->", blank, text, flags=re.DOTALL)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"`[^`\n]*`", "x", text)


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Yield the sentences of a page with their line; rows of tables and headings are left out."""
    paragraph: list[str] = []
    start = 1
    for number, line in enumerate([*text.splitlines(), ""], 1):
        bullet = re.match(r"\s*(?:[-*]|\d+\.) ", line)
        if not line.strip() or line.startswith(("|", "#", "!", "<")) or bullet:
            for sentence in re.split(r"(?<=[.!?:;])\s+", " ".join(paragraph)):
                yield start, sentence
            paragraph, start = [], number
        if line.strip() and not line.startswith(("|", "#", "!", "<")):
            paragraph.append(re.sub(r"^\s*(?:[-*]|\d+\.) ", "", line).strip())


def faults(path: Path) -> Iterator[str]:
    """Yield what is wrong with the words of a page."""
    name = str(path.relative_to(ROOT))
    text = prose(path.read_text(encoding="utf-8"))
    for number, line in enumerate(text.splitlines(), 1):
        for word, instead in WORDS.items():
            match = re.search(rf"\b{word}\b", line, re.IGNORECASE)
            if match:
                yield f"{name}:{number}: {match[0]!r}: write {instead}"
    if name in SHORT:
        for number, sentence in sentences(text):
            length = len(sentence.split())
            if length > MAX_WORDS:
                yield f"{name}:{number}: a sentence of {length} words: {sentence[:60]}..."


def count_words() -> int:
    """Count the words of all pages without code and generated lists."""
    return sum(len(prose(path.read_text(encoding="utf-8")).split()) for path in pages())


def main() -> int:
    """Print every fault; return the exit status."""
    found = [fault for path in pages() for fault in faults(path)]
    total = count_words()
    if total > MAX_TOTAL:
        found.append(f"the pages have {total:,} words, over {MAX_TOTAL:,}: shorten one")
    print("\n".join(found) or f"{total:,} words in {len(pages())} pages, no fault")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
