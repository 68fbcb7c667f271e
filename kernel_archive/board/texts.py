"""Put strangers' text on a page: nothing of it is markup, and what can't be seen is shown.

HTML is made from the templates in ``page/*.html`` with :func:`render_html` alone, which escapes
every value that is not marked as markup of ours.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any, Final

from markupsafe import Markup

from kernel_archive.storage import templates_in

_PAGE: Final = Path(__file__).with_name("page")

#: Controls, format characters, lone surrogates, private use, line and paragraph separators.
_HIDDEN: Final = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\xad\\u061c\\u115f\\u1160\\u180e\\u200b-\\u200f"
    "\\u2028-\\u202e\\u2060-\\u206f\\u3164\\ufe00-\\ufe0f\\ufeff\\uffa0\\ufff0-\\uffff"
    "\\ud800-\\udfff\\ue000-\\uf8ff\\U000e0000-\\U000e0fff]"
)


def visible(text: str) -> str:
    r"""Name every invisible character: blanks, tabs and line ends stay.

    >>> visible("a\u202eb\x1b[0m")
    'a⟦U+202E⟧b⟦U+001B⟧[0m'
    """
    return _HIDDEN.sub(lambda match: f"⟦U+{ord(match[0]):04X}⟧", text)


@cache
def page_file(name: str) -> str:
    """Read a file of the page's own folder."""
    return (_PAGE / name).read_text(encoding="utf-8")


def _shown(value: Any) -> Any:
    return value if isinstance(value, Markup) else visible(unicodedata.normalize("NFC", str(value)))


_TEMPLATES: Final = templates_in(_PAGE, autoescape=True, finalize=_shown)


def render_html(template: str, **values: Any) -> str:
    """Fill a template of ``page/`` with values, escaped unless they are ``Markup``."""
    return _TEMPLATES.get_template(template).render(values)
