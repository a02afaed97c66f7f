"""The transformer's gradients against plain automatic differentiation; only where torch (``[record]``) is installed."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from recorder import transformer, transformer_plans  # noqa: E402
from recorder.monitor import Log  # noqa: E402
from recorder.perturb import GRADIENT, STATE  # noqa: E402


def test_micro_gradients_average_to_the_gradient_of_the_batch() -> None:
    rng, net = np.random.default_rng(0), transformer.Transformer(32)
    theta = net.init(rng)
    x, y = rng.integers(0, 96, (3, 64)), rng.integers(0, 96, (3, 64))
    losses, grads = net.micro_gradients(theta, x, y)
    flat = torch.from_numpy(theta.copy()).requires_grad_()
    parts, start = {}, 0
    for name, shape in net.shapes.items():
        n = int(np.prod(shape))
        parts[name] = flat[start : start + n].reshape(shape)
        start += n
    loss = net.loss(parts, torch.from_numpy(x), torch.from_numpy(y))
    loss.backward()
    assert losses.mean() == pytest.approx(loss.item(), rel=1e-5)
    np.testing.assert_allclose(grads.mean(axis=0), flat.grad.numpy(), atol=1e-5)


def test_no_character_sees_a_later_one() -> None:
    rng, net = np.random.default_rng(1), transformer.Transformer(32)
    p = net.tensors(net.init(rng))
    x = torch.from_numpy(rng.integers(0, 96, (1, 64)))
    y = x.roll(-1, 1)
    other = x.clone()
    other[0, 40:] = 5
    first = torch.nn.functional.cross_entropy
    try:
        kept = []
        torch.nn.functional.cross_entropy = lambda logits, target: kept.append(logits) or logits.sum()
        net.loss(p, x, y)
        net.loss(p, other, y)
    finally:
        torch.nn.functional.cross_entropy = first
    torch.testing.assert_close(kept[0][:40], kept[1][:40])
    assert not torch.allclose(kept[0][40:], kept[1][40:])


def test_schedule_warms_up_and_decays() -> None:
    s = transformer.Settings()
    lr = [s.schedule(t) for t in range(s.steps)]
    assert int(np.argmax(lr)) in (s.warmup - 1, s.warmup)
    assert lr[0] == pytest.approx(s.lr / s.warmup)
    assert lr[-1] == pytest.approx(0.1 * s.lr, rel=0.01)


def test_fork_is_exact_and_kinds_are_known() -> None:
    from recorder.store import series_equal

    arms = transformer_plans.OTHERS | transformer_plans.RAMPS | transformer_plans.HARM
    known = transformer.TEXT_KINDS.keys() | STATE.keys() | GRADIENT.keys() | {"lr_spike", "momentum"}
    assert {p.kind for p in arms.values() if p} <= known
    text, settings = transformer.Text.load(), transformer.Settings(steps=6, fork=3)
    chosen = {"control": None, "token_noise_50": transformer_plans.OTHERS["token_noise_50"]}
    logs = transformer.record_seed(transformer.Transformer(32), settings, 0, chosen, text)
    control, other = (logs[a].arrays() for a in chosen)
    assert series_equal(control, other, before=3)
    assert not series_equal(control, other)
    assert isinstance(logs["control"], Log)
