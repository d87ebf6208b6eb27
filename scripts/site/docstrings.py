"""Extension of the site's reference: examples in docstrings are shown as code.

Docstrings are plain text. What is indented after an empty line is code, Python's where it can be parsed; what begins
with ``>>>`` is a session, up to the next empty line.
"""

from __future__ import annotations

import ast
import re
from textwrap import dedent
from typing import Any

import griffe

SESSION = re.compile(r"(?m)^>>> (?:.+\n?)+")
INDENTED = re.compile(r"(?m)(?<=\n\n)(?: {4}.*\n?|\n(?= {4}))+")


class Examples(griffe.Extension):
    """Fences the examples of every docstring that is loaded."""

    def on_instance(self, *, obj: griffe.Object, **rest: Any) -> None:
        """Rewrite one docstring."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """Return a docstring's text with fences around its examples.

    >>> print(fenced("Twice.\\n\\n    twice(2)\\n\\n>>> twice(2)\\n4"))
    Twice.
    <BLANKLINE>
    ```python
    twice(2)
    ```
    <BLANKLINE>
    ```pycon
    >>> twice(2)
    4
    ```
    """
    text = INDENTED.sub(lambda found: _block(_language(found[0]), dedent(found[0]), found[0]), text)
    return SESSION.sub(lambda found: _block("pycon", found[0], found[0]), text)


def _block(language: str, code: str, was: str) -> str:
    return f"```{language}\n{code.rstrip()}\n```" + "\n" * (len(was) - len(was.rstrip("\n")))


def _language(code: str) -> str:
    try:
        ast.parse(dedent(code))
    except SyntaxError:
        return "text"
    return "python"
