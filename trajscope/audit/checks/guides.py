"""The questions of two guides (training stability, debugging), and the rules that answer each."""

from __future__ import annotations

__all__ = ["GUIDES"]

#: Question -> ids of the rules of the catalogue that answer it, wholly or in part.
GUIDES: dict[str, tuple[str, ...]] = {
    "gradient norm very large, small or erratic": ("C1", "C2", "C3", "C16"),
    "learning rate too high for batch and optimizer": ("D1", "C4", "C5", "B16"),
    "missing warm-up": ("D2", "D3"),
    "loss scales of several objectives do not match": ("E6",),
    "bad initialisation or residual path": ("C10", "A1", "X3"),
    "exploding gradients": ("C1", "C2", "C3"),
    "preprocessing differs between training and validation": ("E4", "X2"),
    "wrong mode of the model": ("X1",),
    "resume without optimizer, scheduler, scaler or random state": ("D4", "D5", "X4"),
    "loss, rate, gradient norm and validation logged together": ("COV",),
    "instability at warm-up, schedule, resume or data change": ("D2", "D3", "D4", "D6"),
    "clipping active how often": ("C4",),
    "effective batch size": ("D10",),
    "numerical, data, objective, optimization or evaluation": ("A1", "E5", "E9", "D2"),
    "skipped steps": ("A6",),
    "stable but overfit, unstable but good": ("E1", "E2", "E3"),
    "baseline first, one change at a time": ("D8",),
    "data loading speed, shuffling, label integrity, corrupted batches": ("A8", "E5", "E6", "E10", "E8"),
    "logging of every batch": ("DEN",),
    "normalisation and augmentation that drift": ("E9",),
    "learning signal isolated, optimizer swapped": ("D8",),
    "magnitude, sign, sparsity and tails of gradients": ("C18", "C11"),
    "epochs and composition of batches": ("E10",),
    "learning-rate finder": ("D11",),
    "strength of regularisation": ("D8",),
    "sudden onset: leakage or misalignment": ("CP", "E4"),
    "a model that memorises early": ("E1", "E2", "E3"),
    "saturated activations": ("C11",),
    "versions, seeds, nondeterminism": ("X5",),
    "compact set of indicators": ("M1",),
    "alert thresholds without noise": ("AL",),
    "logarithmic scale": ("M1",),
    "drift after several epochs": ("CP", "D7"),
}
