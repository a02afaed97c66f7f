"""Roles guessed from names: a table of names that loggers write, and the real names where they are at hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from trajscope.history.roles import BIGGER_IS_BETTER, ROLES, guess_role, split_name
from trajscope.readers import scan_runs

# (role, least confidence, names)
EXPECTED: list[tuple[str, float, str]] = [
    ("loss", 0.9, "loss | train/loss | train_loss | Train Loss | lm loss"),
    ("loss", 0.9, "lm_loss | total_loss | loss/train | Loss/train | trl"),
    ("loss", 0.9, "train_loss_step | train_loss_epoch | epoch_loss"),
    ("loss", 0.9, "train/CrossEntropyLoss | train/ctc_loss | nll_loss"),
    ("loss", 0.9, "info/learner/default_policy/total_loss | info/learner/default_policy/learner_stats/total_loss"),
    ("loss", 0.5, "train_loss_ce | d_loss | loss_G | contrastive_loss"),
    ("val_loss", 0.9, "val_loss | val/loss | eval_loss | eval/loss"),
    ("val_loss", 0.9, "valid_loss | Valid Loss | validation/loss | test_loss"),
    ("val_loss", 0.9, "Loss/test | loss/val | val_loss_epoch | eval_g3_loss | validation loss | validation/ctc_loss"),
    ("val_loss", 0.5, "validation/lm loss value | tel | val_ema_loss | val/box_loss | test_loss_giou"),
    ("aux_loss", 0.5, "z_loss | moe_aux_loss | load_balancing_loss"),
    ("aux_loss", 0.5, "train/box_loss | loss_cls | train_loss_bbox | icm_loss"),
    ("aux_loss", 0.5, "train_loss_ce_0"),
    ("aux_loss", 0.5, "train_loss_giou_4_unscaled | info/learner/default_policy/learner_stats/alpha_loss"),
    ("accuracy", 0.8, "accuracy | acc | train_acc | Accuracy/train | top1 | f1 | train/bleu | acc_pose"),
    ("val_accuracy", 0.8, "val_acc | val/accuracy | eval_accuracy | eval_top1 | test_acc1 | validation/bleu | eval_f1"),
    ("val_accuracy", 0.8, "metrics/mAP50(B) | metrics/precision(B) | val/coco/AP | val/PCK | test_coco_eval_bbox/0"),
    ("perplexity", 0.9, "ppl | train/Perplexity | train_perplexity_step"),
    ("val_perplexity", 0.9, "valid_ppl | val/perplexity | Valid Perplexity | validation/lm loss PPL"),
    ("error", 0.5, "wer | mse | train_class_error | error rate"),
    ("val_error", 0.5, "val_wer | test_error | validation/wer | val_mse | val/NME"),
    ("return", 0.9, "rollout/ep_rew_mean | ep_rew_mean"),
    ("return", 0.9, "episode_reward_mean | ray/tune/episode_reward_mean | AverageEpRet"),
    ("return", 0.9, "charts/episodic_return | Environment/Cumulative Reward | return_mean"),
    ("return", 0.9, "mean_reward | Return | rewards/mean"),
    ("return", 0.5, "r | reward | episode_reward_max | MaxEpRet | mean_int_reward | Policy/Extrinsic Reward"),
    ("eval_return", 0.9, "eval/mean_reward | eval/return"),
    ("eval_return", 0.9, "evaluation/episode_reward_mean | AverageTestEpRet | test_return_mean"),
    ("episode_length", 0.9, "rollout/ep_len_mean | episode_len_mean | EpLen"),
    ("episode_length", 0.9, "TestEpLen | eval/mean_ep_length | ep_length_mean"),
    ("success", 0.8, "rollout/success_rate | eval/success_rate | eval/win_rate | test_battle_won_mean"),
    ("grad_norm", 0.9, "grad_norm | train/grad_norm | grad norm"),
    ("grad_norm", 0.9, "gradient_norm/global | optim/total_grad_norm | gnorm"),
    ("grad_norm", 0.9, "info/learner/grad_gnorm | grad/norm"),
    ("grad_norm", 0.5, "optim/grad/module.transformer.blocks.0.att_proj.weight.norm | norm"),
    ("grad_cos", 0.8, "grad_cosine | cos_grad | cos_momentum_grad | gradient coherence"),
    ("update_norm", 0.9, "update_norm | optim/update_norm"),
    ("param_norm", 0.9, "param_norm | weight_norm | l2_norm/param | info/learner/var_gnorm"),
    ("param_norm", 0.5, "optim/param/module.transformer.blocks.0.att_proj.weight.norm"),
    ("lr", 0.9, "lr | LR | learning_rate | learning rate | train/learning_rate | lr-AdamW/pg1 | lr/pg0 | train_lr"),
    ("lr", 0.9, "Policy/Learning Rate | info/learner/cur_lr | optim/learning_rate_group0"),
    ("entropy", 0.8, "entropy | losses/entropy | train/entropy_loss | policy_entropy | Policy/Entropy"),
    ("kl", 0.9, "kl | KL | approx_kl | train/approx_kl | losses/approx_kl | objective/kl"),
    ("clip_fraction", 0.9, "train/clip_fraction | losses/clipfrac | ClipFrac | optim/clipping_rate"),
    ("policy_loss", 0.9, "policy_loss | train/policy_gradient_loss | actor_loss | LossPi | Losses/Policy Loss"),
    ("policy_loss", 0.9, "info/learner/default_policy/policy_loss"),
    ("value_loss", 0.9, "value_loss | train/value_loss | critic_loss"),
    ("value_loss", 0.9, "LossV | LossQ | info/learner/vf_loss | qf1_loss"),
    ("explained_variance", 0.9, "train/explained_variance | info/learner/default_policy/vf_explained_var"),
    ("q_value", 0.5, "AverageQ1Vals | q_taken_mean | info/learner/default_policy/mean_q"),
    ("td_error", 0.9, "td_error_abs | info/learner/default_policy/td_error"),
    ("loss_scale", 0.9, "loss scale | loss_scale | grad_scale | loss_scaler"),
    ("skipped", 0.9, "number of skipped iterations | number of nan iterations | skipped_steps"),
    ("throughput", 0.9, "time/fps | samples_per_second | tokens/s | tokens per gpu per second"),
    ("throughput", 0.9, "TFLOPs | mfu | charts/SPS | wps"),
    ("tokens", 0.9, "consumed samples | throughput/total_tokens | tokens_seen"),
    ("batch_size", 0.9, "global batch size | batch_size"),
    ("step_time", 0.8, "epoch_time | data_time | elapsed time per iteration (ms) | step_avg | eval_g0_runtime"),
    ("elapsed", 0.8, "_runtime | time/time_elapsed | time_total_s | accumulated_submission_time"),
    ("step", 0.9, "step | global_step | trainer/global_step"),
    ("step", 0.9, "time/total_timesteps | training_iteration | TotalEnvInteracts"),
    ("epoch", 0.9, "epoch | Epoch"),
    ("system", 0.9, "System/Peak GPU Memory (MB) | perf/cpu_util_percent | gpu/0/memory"),
    ("temperature", 0.8, "ent_coef | train/ent_coef | alpha | info/learner/default_policy/cur_kl_coeff"),
    # names that share a word with a role and are something else
    ("", 0.0, "banana | score | preemption_count | eval/std_reward"),
    ("", 0.0, "StdEpRet | reward_std | DeltaLossPi | max_grad_norm"),
    ("", 0.0, "optim/exp_avg/module.transformer.blocks.0.att_proj.weight.norm | validation/num_examples | StdQ1Vals"),
    ("", 0.0, "info/learner/default_policy/learner_stats/target_entropy | info/opt_samples | results/0 | "),
]  # fmt: skip

NAMES = [(name.strip(), role, least) for role, least, names in EXPECTED for name in names.split("|")]


@pytest.mark.parametrize(("name", "role", "least"), NAMES)
def test_role_of_name(name: str, role: str, least: float) -> None:
    found, confidence = guess_role(name)
    assert found == role
    assert confidence >= least
    assert (confidence == 0.0) == (role == "")


def test_every_role_of_the_table_is_documented() -> None:
    roles = {role for _, role, _ in NAMES if role}
    assert roles <= set(ROLES)
    assert set(BIGGER_IS_BETTER) <= set(ROLES)


def test_words_are_cut_at_case_digits_and_signs() -> None:
    assert split_name("AverageVVals") == ["average", "v", "vals"]
    assert split_name("train/lmLoss_epoch") == ["train", "lm", "loss", "epoch"]
    assert split_name("MSELoss") == ["mse", "loss"]
    assert split_name("—") == []


#: Real channels whose role decides an audit, by the folder they lie in: (folder, channel, role).
REAL = [
    ("csv_algoperf", "validation/loss", "val_loss"), ("csv_algoperf", "validation/accuracy", "val_accuracy"),
    ("csv_algoperf", "grad_norm", "grad_norm"), ("csv_algoperf", "loss", "loss"), ("csv_algoperf", "lr", "lr"),
    ("csv_lightning", "train_loss_step", "loss"), ("csv_lightning", "val_loss", "val_loss"),
    ("csv_rl", "ep_rew_mean", "return"), ("csv_sb3_monitor", "r", "return"),
    ("csv_rllib", "episode_reward_mean", "return"), ("jsonl_rllib", "episode_reward_mean", "return"),
    ("json_hf_trainer_state", "eval_g0_loss", "val_loss"), ("json_hf_trainer_state", "loss", "loss"),
    ("json_hf_trainer_state", "learning_rate", "lr"), ("jsonl_detr", "train_loss", "loss"),
    ("jsonl_detr", "test_loss", "val_loss"), ("jsonl_mmengine", "loss", "loss"), ("jsonl_mmengine", "lr", "lr"),
    ("npz_sb3_evaluations", "eval/mean_reward", "eval_return"), ("npy_td3", "eval_return", "eval_return"),
    ("tsv_spinningup", "AverageEpRet", "return"), ("tsv_spinningup", "AverageTestEpRet", "eval_return"),
    ("text", "val_loss", "val_loss"), ("text", "train/CrossEntropyLoss", "loss"),
    ("text", "optim/total_grad_norm", "grad_norm"), ("text", "tel", "val_loss"), ("text", "trl", "loss"),
]  # fmt: skip

#: Performance and optimizer roles must never come from a name with one of these parts.
NEVER = ("std", "time", "per_second", "num_", "target_entropy", "exp_avg", "count")
DECIDING = {"loss", "val_loss", "val_accuracy", "accuracy", "return", "eval_return", "success", "grad_norm", "lr"}


@pytest.fixture(scope="module")
def real_names(shared_data: Path) -> dict[str, dict[str, str]]:
    """Channel names with their roles, by folder of the sample data."""
    names: dict[str, dict[str, str]] = {}
    for folder in sorted({f for f, _, _ in REAL}):
        found = names.setdefault(folder, {})
        for run in scan_runs(shared_data / "logs" / folder):
            found.update({c.name: c.role for c in run.channels.values()})
    return names


def test_roles_of_real_channels_that_decide(real_names: dict[str, dict[str, str]]) -> None:
    wrong = [(f, c, real_names[f].get(c)) for f, c, role in REAL if real_names[f].get(c) != role]
    assert wrong == []


def test_bookkeeping_is_never_taken_for_performance(real_names: dict[str, dict[str, str]]) -> None:
    wrong = [
        (folder, name, role)
        for folder, names in real_names.items()
        for name, role in names.items()
        if role in DECIDING and any(part in name.lower() for part in NEVER)
    ]
    assert wrong == []
