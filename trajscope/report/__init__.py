"""One summary of an audit, rendered: HTML, Markdown, JSON, terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trajscope.errors import InputError, nearest

__all__ = ["render", "write"]

FORMATS = (".html", ".md", ".json")


def render(audit: Any, kind: str, index: str = "") -> str:
    """An audit (or a list of them) as text of the kind ``.html``, ``.md`` or ``.json``.

    ``index`` is the address of the page of all runs, where there is one.
    """
    many = isinstance(audit, list)
    if kind == ".json":
        value = [a.to_dict() for a in audit] if many else audit.to_dict()
        return json.dumps(value, indent=1, ensure_ascii=True) + "\n"
    if kind == ".html":
        from trajscope.report.html import run_page

        return run_page(audit, index)
    if kind == ".md":
        from trajscope.report.markdown import run_page as markdown_page

        return markdown_page(audit)
    raise InputError(f"report format {kind!r} is unknown. {nearest(kind, FORMATS)}")


def write(audit: Any, path: Path, index: str = "") -> Path:
    """Write a report; the file appears only when it is complete."""
    text = render(audit, path.suffix.lower(), index)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_text(text, encoding="utf-8", errors="backslashreplace")  # names that are no Unicode
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path
