"""Write a study to a folder: its tables as CSV, its figures as PDF and PNG, what may be claimed as text."""

from __future__ import annotations

import json
from pathlib import Path

from trajscope.errors import InputError
from trajscope.inference.studies import Study

__all__ = ["write_study"]


def write_study(study: Study, out: Path) -> list[Path]:
    """Write ``claim.md``, ``study.json``, a CSV for each table, a PDF and a PNG for each figure; same bytes each time.

    Raises
    ------
    InputError
        If `out` is a file.
    """
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    from trajscope.plots.style import style

    if out.is_file():
        raise InputError(f"-o {out}: that is a file; a folder is expected")
    out.mkdir(parents=True, exist_ok=True)
    written = [out / "claim.md", out / "study.json"]
    lines = [f"# {study.name}", "", study.claim, ""]
    reasons: dict[str, list[str]] = {}
    for run, reason in study.skipped.items():
        reasons.setdefault(reason, []).append(run)
    for reason, runs in reasons.items():
        more = f" and {len(runs) - 3} more (study.json has all)" if len(runs) > 3 else ""
        lines.append(f"- not used, {reason}: {', '.join(runs[:3])}{more}")
    written[0].write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8", errors="backslashreplace")
    written[1].write_text(json.dumps(study.to_dict(), indent=1, ensure_ascii=True) + "\n", encoding="ascii")
    for stem, table in study.tables.items():
        written.append(out / f"{stem}.csv")
        named = table.index.names != [None]
        table.to_csv(written[-1], index=named, lineterminator="\n", float_format="%.6g")
    for stem, result in study.figures.items():
        with style():
            drawn = result.plot()
            figure = getattr(drawn, "figure", None) or drawn
            for suffix, metadata in ((".pdf", {"CreationDate": None, "Producer": None}), (".png", {"Software": None})):
                written.append(out / f"{stem}{suffix}")
                figure.savefig(written[-1], metadata=metadata)
        plt.close(figure)
    return written
