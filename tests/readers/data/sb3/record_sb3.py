"""Record what Stable-Baselines3's own writers write: ``python record_sb3.py FOLDER``.

PPO on CartPole for 1,024 steps, two environments, an evaluation every 256 steps of each environment.
"""

import sys
from pathlib import Path


def main(folder: Path) -> None:
    """Train and log."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import EvalCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.logger import configure

    env = make_vec_env("CartPole-v1", n_envs=2, seed=0, monitor_dir=str(folder))
    model = PPO("MlpPolicy", env, n_steps=64, batch_size=64, seed=0, device="cpu")
    model.set_logger(configure(str(folder), ["csv"]))
    held_out = make_vec_env("CartPole-v1", seed=1)
    check = EvalCallback(held_out, n_eval_episodes=3, eval_freq=128, log_path=str(folder), verbose=0)
    model.learn(1024, callback=check)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
