"""Extension of the site's reference: docstrings are plain text, and are shown as they were written.

What is indented after an empty line is code, Python's where it can be parsed; what begins with ``>>>`` is a session
up to the next empty line. Stars and angle brackets outside code are what they are, not Markdown.
"""

from __future__ import annotations

import ast
import re
from textwrap import dedent
from typing import Any

import griffe

CODE = re.compile(r"(?s)(``.+?``|`[^`\n]+`)")
SESSION = re.compile(r"(?:>>> |\.\.\. )")


class Examples(griffe.Extension):
    """Changes every docstring that is loaded into Markdown."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change one docstring."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    r"""Return a docstring's text as Markdown.

    >>> print(as_markdown("Of 2**``bits`` these.\n\n    twice(2)"))
    Of 2\*\*``bits`` these.
    <BLANKLINE>
    ```python
    twice(2)
    ```
    """
    parts: list[str] = []
    for part in text.split("\n\n"):
        kind = _kind(part)
        if kind == "indented" and parts and _kind(parts[-1]) == "indented":
            parts[-1] += f"\n\n{part}"
        else:
            parts.append(part)
    return "\n\n".join(map(_shown, parts))


def _kind(part: str) -> str:
    if SESSION.match(part):
        return "session"
    return "indented" if part.startswith("    ") else "text"


def _shown(part: str) -> str:
    kind = _kind(part)
    if kind == "text":
        pieces = CODE.split(part)
        return "".join(p if i % 2 else re.sub(r"([*<])", r"\\\1", p) for i, p in enumerate(pieces))
    code = dedent(part).strip("\n")
    return f"```{'pycon' if kind == 'session' else _language(code)}\n{code}\n```"


def _language(code: str) -> str:
    try:
        ast.parse(code)
    except SyntaxError:
        return "text"
    return "python"
