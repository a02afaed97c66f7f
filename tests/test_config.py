"""Settings: precedence, origins, errors that teach."""

from __future__ import annotations

from pathlib import Path

import pytest

from trajscope.config import Settings, load_settings
from trajscope.errors import ConfigError


def test_precedence_flag_over_environment_over_file_over_local_over_default(tmp_path: Path) -> None:
    (tmp_path / "trajscope.toml").write_text("alpha = 0.01\nseed = 1\nmin_rows = 10\n")
    given = tmp_path / "other.toml"
    given.write_text("alpha = 0.02\nseed = 2\n")
    settings, origins = load_settings(
        {"alpha": 0.04, "seed": None}, given, environ={"TRAJSCOPE_SEED": "3"}, folder=tmp_path
    )
    assert (settings.alpha, settings.seed, settings.min_rows, settings.tail) == (0.04, 3, 10, 0.1)
    assert origins["alpha"] == "flag"
    assert origins["seed"] == "environment (TRAJSCOPE_SEED)"
    assert origins["min_rows"].endswith("trajscope.toml")
    assert origins["tail"] == "default"


def test_roles_of_flag_and_file_are_joined(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text('[roles]\na = "loss"\nb = "lr"\n')
    settings, _ = load_settings({"roles": {"b": "grad_norm"}}, file, environ={}, folder=tmp_path)
    assert settings.roles == {"a": "loss", "b": "grad_norm"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("alfa = 0.1", r"setting 'alfa' is unknown. Did you mean 'alpha'\?"),
        ("alpha = 'much'", "expected a number"),
        ("alpha = 2.0", "out of range"),
        ("seed = 1.5", "expected a whole number"),
        ("alpha == 1", "not valid TOML"),
        ("roles = 3", "expected a table"),
    ],
)
def test_bad_files_say_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "s.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_settings(config=file, environ={}, folder=tmp_path)


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be opened"):
        load_settings(config=tmp_path / "none.toml", environ={}, folder=tmp_path)


def test_the_hash_follows_every_setting() -> None:
    hashes = {Settings().hash, Settings(alpha=0.01).hash, Settings(roles={"a": "loss"}).hash, Settings(seed=1).hash}
    assert len(hashes) == 4
    assert Settings().hash == Settings().hash
