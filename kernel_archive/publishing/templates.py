"""Fill in the templates of ``cards/`` with Jinja.

Filters make foreign text harmless in Markdown: ``md`` and ``code``.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

from kernel_archive.errors import printable
from kernel_archive.storage import content_path, templates_in

if TYPE_CHECKING:
    import jinja2

_MARKDOWN_MARKS: Final = "\\`*_{}[]<>#|!~$"


def number(value: float) -> str:
    """Format a count with thousands separators, any other figure with four significant digits."""
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def share(part: int, whole: int) -> str:
    """Format a part with its percentage: ``12 (3.4 %)``."""
    return f"{part:,} ({100 * part / whole:.1f} %)" if whole else f"{part:,}"


def markdown_text(text: object, limit: int = 300) -> str:
    """Escape any text to one line of literal Markdown without mark-up, HTML or table borders."""
    plain = printable(" ".join(str(text).split()), limit)
    return "".join("\\" + c if c in _MARKDOWN_MARKS else c for c in plain)


def code_span(text: object, limit: int = 120) -> str:
    """Turn any text into a code span that also holds inside a table."""
    plain = printable(str(text), limit).replace("`", "'").replace("|", "\\|")
    return f"`{plain}`" if plain.strip() else ""


def prose(text: str, limit: int = 4000) -> str:
    """Keep the inline mark-up of a recipe's sentence, but no HTML and no line breaks."""
    return printable(" ".join(text.split()), limit).replace("<", "&lt;")


def dump_yaml(value: Any) -> str:
    """Write a value as YAML: keys in their order, one line per text."""
    import yaml

    return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=10_000))


@cache
def _templates() -> jinja2.Environment:
    templates = templates_in(content_path("cards"), keep_trailing_newline=True)
    templates.filters |= {f.__name__: f for f in (number, share, prose, dump_yaml, printable)}
    templates.filters |= {"md": markdown_text, "code": code_span}
    return templates


def render_markdown(template: str, **values: Any) -> str:
    """Fill in a template of ``cards/``; a name that it uses and that is not given is an error."""
    return _templates().get_template(template).render(values)
