"""Records ``keras_training.log``: scikit-learn's digits, an MLP, Keras' own CSVLogger, stopped and appended to.

Run with ``KERAS_BACKEND=jax python record_keras.py`` (keras, jax and scikit-learn; versions are in README.md).
"""

from __future__ import annotations

from pathlib import Path


def main() -> None:
    """Train twice into one file."""
    import keras
    import numpy as np
    from sklearn.datasets import load_digits

    keras.utils.set_random_seed(0)
    digits = load_digits()
    x, y = (digits.data / 16).astype(np.float32), digits.target
    model = keras.Sequential([keras.layers.Dense(32, activation="relu"), keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss=loss, metrics=["accuracy"])
    path = Path(__file__).with_name("keras_training.log")
    for session, epochs in enumerate((12, 8)):
        logger = keras.callbacks.CSVLogger(str(path), append=session > 0)
        held_out = (x[1400:], y[1400:])
        model.fit(
            x[:1400],
            y[:1400],
            epochs=epochs,
            verbose=0,
            validation_data=held_out,
            validation_freq=2,
            callbacks=[logger],
        )


if __name__ == "__main__":
    main()
