"""A kernel program taken apart lexically: host code, Triton kernels, CUDA source, and tokens.

Programs are untrusted text in two languages at once and often do not parse, so nothing here parses or runs them. All
patterns are linear in the text, and a program is read up to :data:`MAX_CHARACTERS`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from kernel_archive.ids import without_cpp_comments

#: Longer programs are cut here: no kernel that a search has written is near it.
MAX_CHARACTERS: Final = 200_000

_QUOTES: Final = re.compile("(\"\"\"|''')")
_CPP_MARKS: Final = ("#include", "__global__", "__device__")
_PYTHON_COMMENT: Final = re.compile(r"#[^\n]*")
_TOKEN: Final = re.compile(r"[A-Za-z_]\w*|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|[^\s\w]")


@dataclass(frozen=True)
class ProgramParts:
    """The parts of one program.

    Attributes:
        host: Python that runs on the host, without docstrings and comments.
        triton: bodies of functions under a ``triton.jit`` or ``autotune`` decorator.
        cuda: CUDA C++ source, from triple-quoted strings or the whole file.
    """

    host: str
    triton: str
    cuda: str

    @classmethod
    def of(cls, code: str) -> ProgramParts:
        r"""Take a program apart.

        >>> p = ProgramParts.of("import torch\n@triton.jit\ndef k(x):\n    tl.load(x)\ny = k[(1,)](x)\n")
        >>> p.triton.split(), p.host.split()[-3:]
        (['@triton.jit', 'def', 'k(x):', 'tl.load(x)'], ['y', '=', 'k[(1,)](x)'])
        """
        text = code[:MAX_CHARACTERS]
        if "import" not in text and any(mark in text for mark in _CPP_MARKS):
            return cls(host="", triton="", cuda=without_cpp_comments(text))
        python: list[str] = []
        cuda: list[str] = []
        inside: str | None = None
        for part in _QUOTES.split(text):
            if part in ('"""', "'''") and inside in (None, part):
                inside = part if inside is None else None
            elif inside is None:
                python.append(part)
            elif any(mark in part for mark in _CPP_MARKS):
                cuda.append(without_cpp_comments(part))
        host, triton = _split_triton(_PYTHON_COMMENT.sub("", "".join(python)))
        return cls(host=host, triton=triton, cuda="\n".join(cuda))

    @property
    def device(self) -> str:
        """All that runs on the GPU."""
        return f"{self.triton}\n{self.cuda}"

    @cached_property
    def tokens(self) -> list[str]:
        """Names, numbers and marks, in order."""
        return _TOKEN.findall(f"{self.host}\n{self.triton}\n{self.cuda}")


def _split_triton(python: str) -> tuple[str, str]:
    """Host lines and the lines of Triton functions with their decorators."""
    host: list[str] = []
    device: list[str] = []
    decorators: list[str] = []
    state = "host"  # host | decorated (after a decorator) | body (inside a Triton function)
    for line in python.split("\n"):
        top = line[:1] not in ("", " ", "\t", ")", "]")
        if state == "body" and not top:
            device.append(line)
            continue
        if state == "decorated" and not (top and line.startswith(("def ", "async def ", "class "))):
            decorators.append(line)
            continue
        if state == "decorated":
            jit = "jit" in "".join(decorators)
            (device if jit else host).extend([*decorators, line])
            decorators, state = [], "body" if jit else "host"
            continue
        if top and line.startswith("@"):
            decorators, state = [line], "decorated"
            continue
        host.append(line)
        state = "host"
    host.extend(decorators)
    return "\n".join(host), "\n".join(device)
