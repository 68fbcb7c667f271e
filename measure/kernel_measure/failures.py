"""Turn what a program raised into a verdict: its kind, its text, and the frames of its own."""

from __future__ import annotations

import re
import traceback
from pathlib import Path

from kernel_measure import guards

#: Cut a message or a traceback after this many characters, and a name.
MAX_TEXT = 4000
_MAX_NAME = 200
#: Exceptions of the compilers that programs use at their first call.
_COMPILE_ERRORS = frozenset(
    ("CompilationError", "CompileTimeAssertionFailure", "UnsupportedLanguageConstruct")
) | {"PTXASError"}
#: The folders of an absolute path: a compiler's command names those of the machine, which say
#: nothing about the program.
_FOLDERS = re.compile(r"(?<![\w.+/-])/(?:[\w.+-]+/)+(?=[\w.+-])")


def failure_by(error: BaseException, *, at_import: bool = False) -> guards.CandidateFailure:
    """What a program raised, as a verdict.

    Its own classes and messages are not trusted to behave.
    """
    name, text = _text(type(error).__name__)[:_MAX_NAME], _text(error)
    if at_import:
        return guards.CandidateFailure("compile_failed", name, f"{name}: {_FOLDERS.sub('', text)}")
    frames = _own_frames(error)
    if name in _COMPILE_ERRORS:
        return guards.CandidateFailure("compile_failed", name, _FOLDERS.sub("", text), frames)
    return guards.CandidateFailure("runtime_error", name, text, frames)


def _own_frames(error: BaseException) -> str:
    """The traceback without the harness's frames: they say nothing about the program."""
    here = str(Path(__file__).parent)
    frames = [
        traceback.FrameSummary(Path(f.filename).name, f.lineno, f.name, line=f.line)
        for f in traceback.extract_tb(error.__traceback__)
        if not f.filename.startswith(here)
    ]
    last = f"{type(error).__name__[:_MAX_NAME]}: {_text(error)[:MAX_TEXT]}"
    return _text("".join([*traceback.format_list(frames), last]))


def _text(value: object) -> str:
    """Something as text that can be written anywhere."""
    try:
        return str(value).encode("utf-8", "backslashreplace").decode()
    except BaseException:  # noqa: BLE001 - whatever the program made of it
        return "(a message that can't be read)"
