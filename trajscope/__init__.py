"""trajscope: explain a finished training run from its logs."""
