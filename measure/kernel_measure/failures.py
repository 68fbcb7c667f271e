"""Turn what a program raised into a verdict: its kind and its text."""

from __future__ import annotations

import re

from kernel_measure import guards

#: Cut a message after this many characters, and a name.
MAX_TEXT = 4000
_MAX_NAME = 200
#: Exceptions of the compilers that programs use at their first call.
_COMPILE_ERRORS = frozenset({
    "CompilationError", "CompileTimeAssertionFailure", "UnsupportedLanguageConstruct", "PTXASError",
})  # fmt: skip
#: The folders of an absolute path: a compiler's command names those of the machine, which say
#: nothing about the program.
_FOLDERS = re.compile(r"(?<![\w.+/-])/(?:[\w.+-]+/)+(?=[\w.+-])")


def failure_by(error: BaseException, *, at_import: bool = False) -> guards.CandidateFailure:
    """Make a verdict of what a program raised.

    Its own classes and messages are not trusted to behave.
    """
    name, text = _text(type(error).__name__)[:_MAX_NAME], _text(error)
    if at_import:
        return guards.CandidateFailure("compile_failed", name, f"{name}: {_FOLDERS.sub('', text)}")
    if name in _COMPILE_ERRORS:
        return guards.CandidateFailure("compile_failed", name, _FOLDERS.sub("", text))
    return guards.CandidateFailure("runtime_error", name, text)


def _text(value: object) -> str:
    """Make a text of anything; the text can be written anywhere."""
    try:
        return str(value).encode("utf-8", "backslashreplace").decode()
    except BaseException:  # noqa: BLE001 - whatever the program made of it
        return "(a message that can't be read)"
