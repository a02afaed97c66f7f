"""The recorder: how the runs under ``datasets/`` were made.

Scripts beside this package (``record_digits.py``, ``make_labels.py``, ...) drive it; trajscope itself never imports it.
"""
