"""The templates of ``cards/``: text and pictures that a contributor edits, filled in by Jinja.

Filters make text that nobody here wrote safe: ``escape`` and ``code`` in Markdown; in a picture everything is escaped.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from kernel_archive.errors import printable
from kernel_archive.storage import content_path

if TYPE_CHECKING:
    import jinja2

_MARKS = "\\`*_{}[]<>#|!~$"


def number(value: float) -> str:
    """A count with thousands separators, or a figure with four significant digits."""
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def share(part: int, whole: int) -> str:
    """A part and its percentage: ``12 (3.4 %)``."""
    return f"{part:,} ({100 * part / whole:.1f} %)" if whole else f"{part:,}"


def escape(text: object, limit: int = 300) -> str:
    """Any text as literal Markdown text in one line: no mark-up, no HTML, no table border in it."""
    return "".join("\\" + c if c in _MARKS else c for c in printable(" ".join(str(text).split()), limit))


def code(text: object, limit: int = 120) -> str:
    """Any text as a code span that also holds inside a table."""
    plain = printable(str(text), limit).replace("`", "'").replace("|", "\\|")
    return f"`{plain}`" if plain.strip() else ""


def prose(text: str, limit: int = 4000) -> str:
    """A sentence of a recipe: its own inline mark-up stays, HTML and line breaks don't."""
    return printable(" ".join(text.split()), limit).replace("<", "&lt;")


def dump_yaml(value: Any) -> str:
    """A value as YAML: keys in their order, one line per text."""
    import yaml

    return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=10_000))


@cache
def _environment() -> jinja2.Environment:
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(content_path("cards")),
        autoescape=jinja2.select_autoescape(["svg"], default=False),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= {f.__name__: f for f in (number, share, code, prose, dump_yaml, printable)} | {"md": escape}
    return made


def render(template: str, **values: Any) -> str:
    """A template of ``cards/`` with these values; a name that it uses and that is not given is an error."""
    return _environment().get_template(template).render(values)
