"""The command line that all recording scripts share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from recorder.batch import P, RecordSeed, check_run, record_file
from recorder.store import versions, write_checksums


def run(
    about: str | None,
    domain: str,
    files: dict[str, tuple[P, ...]],
    make: Callable[[], RecordSeed[P]],
    roles: dict[str, str],
    **more_versions: str,
) -> None:
    """Parse the arguments, then record files or check a run.

    Parameters
    ----------
    about : str
        The script's docstring.
    domain : str
        Folder under the output folder.
    files : mapping
        File name -> plans.
    make : callable
        Loads what the domain needs once and returns the function that records a seed.
    roles : mapping
        Channel -> role.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="*", help=f"default: those not there yet of {', '.join(files)}")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--check", metavar="RUN", help="record this run anew and compare it with the file")
    args = parser.parse_args()
    folder = args.out / domain
    if args.check:
        same = check_run(args.check, folder, files, make())
        print(f"{args.check}: {'identical to the bit' if same else 'DIFFERENT'}")
        raise SystemExit(0 if same else 1)
    unknown = [name for name in args.file if name not in files]
    if unknown:
        parser.error(f"unknown file {unknown[0]!r}; there are {', '.join(files)}")
    wanted = args.file or [name for name in files if not (folder / f"{name}.parquet").exists()]
    record_seed = make()
    for name in wanted:
        record_file(folder / f"{name}.parquet", files[name], record_seed, roles, versions(**more_versions))
        print(folder / f"{name}.parquet")
    write_checksums(args.out)
