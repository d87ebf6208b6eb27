"""HTML from values: nothing that came from a file goes into the page but through here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from laconic.lab.report.amounts import NOTHING
from laconic.lab.report.read import Run
from laconic.lab.report.tables import AGAINST, Column, Row, cells, columns_of, rows_of


def results_table(runs: Sequence[Run]) -> str:
    """Return the table of the results; a colour never says alone what is better or worse."""
    columns = columns_of(runs, "page")
    # The longest heading, the metric's, in two lines: else a table with every column is wider than the page.
    headings = [escape(column.heading).replace(", ", ",<br>") for column in columns]
    head = "".join(f'<th scope="col">{heading}</th>' for heading in headings)
    body = "".join(_result_row(row, columns) for row in rows_of(runs))
    return boxed(f"<table class='results'><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>", "Results")


def settings_tables(runs: Sequence[Run], maps: Sequence[Mapping[str, Any]], what: str) -> str:
    """Return what all runs have in common as one table, and what differs as another with a column a run."""
    flat = [flattened(each) for each in maps]
    keys = list(dict.fromkeys(key for each in flat for key in each))
    same = [key for key in keys if len({each.get(key, "") for each in flat}) == 1]
    rows = "".join(_line(key, [flat[0][key]]) for key in same)
    out = boxed(f"<table class='settings'><tbody>{rows}</tbody></table>", what) if rows else ""
    differ = [key for key in keys if key not in same]
    if differ:
        head = "".join(f'<th scope="col">{escape(run.label)}</th>' for run in runs)
        rows = "".join(_line(key, [each.get(key, NOTHING) for each in flat]) for key in differ)
        table = f"<thead><tr><th scope='col'>differs</th>{head}</tr></thead><tbody>{rows}</tbody>"
        out += boxed(f"<table class='settings'>{table}</table>", f"{what} that differs")
    return out


def flattened(value: Mapping[str, Any], before: str = "") -> dict[str, str]:
    """Return a nested object as one of paths and texts.

    >>> flattened({"task": {"kind": "lm", "tied": True}, "workers": 4, "gpu": None})
    {'task.kind': 'lm', 'task.tied': 'yes', 'workers': '4', 'gpu': 'none'}
    """
    out: dict[str, str] = {}
    for key, each in value.items():
        if isinstance(each, Mapping) and each:
            out |= flattened(each, f"{before}{key}.")
        else:
            out[f"{before}{key}"] = _text(each)
    return out


def boxed(table: str, what: str) -> str:
    """Put a table into a box that scrolls by itself, with the keyboard too."""
    return f'<div class="box" role="region" tabindex="0" aria-label="{escape(what)}">{table}</div>'


def breakable(label: str) -> str:
    """Return a method's label as HTML that may go on in a new line between its settings.

    >>> breakable("topk:density=0.01,memory=<b>")
    'topk:<wbr>density=0.01,<wbr>memory=&lt;b&gt;'
    >>> breakable("celgc:send=topk+k=9")
    'celgc:<wbr>send=topk+<wbr>k=9'
    """
    return escape(label).replace(":", ":<wbr>").replace(",", ",<wbr>").replace("+", "+<wbr>")


def json_in_script(text: str) -> str:
    """Return JSON that cannot end the script element that it stands in."""
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _result_row(row: Row, columns: Sequence[Column]) -> str:
    remark = f'<span class="remark">{escape(row.remark)}</span>' if row.remark else ""
    out = f'<th scope="row">{breakable(row.label)}{remark}</th>'
    word = "" if row.better is None else f" <small>{'better' if row.better else 'worse'}</small>"
    for column, text in zip(columns[1:], cells(row, columns)[1:], strict=True):
        out += f"<td>{escape(text)}{word if column.heading == AGAINST else ''}</td>"
    return f'<tr class="{row.status}">{out}</tr>'


def _line(key: str, values: Sequence[str]) -> str:
    return f'<tr><th scope="row">{escape(key)}</th>{"".join(f"<td>{escape(each)}</td>" for each in values)}</tr>'


def _text(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
