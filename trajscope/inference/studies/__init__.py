"""Studies of many labelled runs: tables, figures, and one paragraph that says what may be claimed.

Each study is a module here with a function ``study(runs, labels, *, alpha, rng) -> Study``.
"""

from trajscope.inference.studies.base import STUDIES, Study, find_study

__all__ = ["STUDIES", "Study", "find_study"]
