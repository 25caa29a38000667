"EP-GRPO against a plain loop in float64, its exact reductions, and its faults."

import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from grpo_repro.advantages import ep_grpo, grpo


def make(seed, lengths, groups, levels, dtype=torch.float64, nan=False):
    g = torch.Generator().manual_seed(seed)
    b, t = len(lengths), max(lengths)
    rewards = torch.tensor([levels[i] for i in torch.randint(0, len(levels), (b,), generator=g).tolist()], dtype=dtype)
    if nan:
        rewards[0] = math.nan
    mask = torch.arange(t) < torch.tensor(lengths)[:, None]
    entropy = torch.rand(b, t, generator=g, dtype=torch.float64) ** 3
    entropy[torch.rand(b, t, generator=g) < 0.2] = 0.0
    logp, ref = (-3 * torch.rand(b, t, generator=g, dtype=torch.float64) for _ in range(2))
    return rewards, torch.tensor(groups), dict(mask=mask, entropy=entropy.to(dtype), logp=logp.to(dtype), ref_logp=ref.to(dtype))


def zscore(values, x, eps):
    if len(values) < 2:
        return 0.0
    return (x - statistics.fmean(values)) / (statistics.pstdev(values) + eps)


def oracle(rewards, groups, mask, entropy, logp, ref_logp, gate=5.0, buckets=10, progress_weight=0.2, reward_threshold=0.5, gate_progress=True, eps=1e-4):
    "SPEC.md, token by token."
    out = torch.zeros(mask.shape, dtype=torch.float64)
    R, G = rewards.tolist(), groups.tolist()
    for g in set(G):
        rows = [i for i in range(len(R)) if G[i] == g and not math.isnan(R[i])]
        if not rows:
            continue
        peers = [R[i] for i in rows]
        constant = max(peers) == min(peers)
        entropies = [float(entropy[i, t]) for i in rows for t in range(mask.shape[1]) if mask[i, t]]
        cell, a, d = {}, {}, {}
        for i in rows:
            a[i] = 0.0 if constant else (R[i] - statistics.fmean(peers)) / (statistics.stdev(peers) + eps)
            sign = R[i] - reward_threshold if constant else (a[i] if abs(a[i]) > 1e-6 else 0.0)
            d[i] = (sign > 0) - (sign < 0)
            steps = [t for t in range(mask.shape[1]) if mask[i, t]]
            total, so_far = math.fsum(float(entropy[i, t]) for t in steps), 0.0
            for j, t in enumerate(steps):
                so_far += float(entropy[i, t])
                tau = so_far / total if total > 0 else (j + 1) / len(steps)
                cell[i, t] = min(math.floor(buckets * tau + 1e-9), buckets - 1)
        for (i, t), k in cell.items():
            s = lambda i, t: float(logp[i, t]) - float(ref_logp[i, t])
            mates = [s(*x) for x, other in cell.items() if other == k]
            w = 2 / (1 + math.exp(-gate * zscore(entropies, float(entropy[i, t]), 1e-6)))
            out[i, t] = w * a[i] + progress_weight * d[i] * zscore(mates, s(i, t), eps) * (w if gate_progress else 1.0)
    return out


@given(
    seed=st.integers(0, 10**6),
    rows=st.lists(st.tuples(st.integers(1, 6), st.sampled_from([0, 3, -5])), min_size=1, max_size=8),
    levels=st.sampled_from([[0.0, 1.0], [1.0], [0.0], [-1.0, -0.2, 0.6]]),
    options=st.fixed_dictionaries({"gate": st.sampled_from([0.0, 1.0, 5.0]), "buckets": st.sampled_from([1, 3, 10]), "gate_progress": st.booleans()}),
    nan=st.booleans(),
)
@settings(max_examples=120, deadline=None)
def test_equals_the_plain_loop(seed, rows, levels, options, nan):
    lengths, groups = zip(*rows)
    rewards, ids, tokens = make(seed, lengths, groups, levels, nan=nan)
    assert_close(ep_grpo(rewards, ids, **tokens, **options), oracle(rewards, ids, **tokens, **options), rtol=1e-8, atol=1e-8)


def batch(dtype=torch.float32):
    return make(0, [6, 4, 5, 1, 3, 6, 2, 4], [0, 0, 0, 0, 1, 1, 1, 1], [0.0, 1.0], dtype)


def test_gate_and_progress_off_is_grpo_exactly():
    rewards, ids, tokens = batch()
    assert torch.equal(ep_grpo(rewards, ids, **tokens, gate=0.0, progress_weight=0.0), grpo(rewards, ids)[:, None] * tokens["mask"])


def test_zero_variance_groups_are_silent_without_progress_and_alive_with_it():
    rewards, ids, tokens = batch()
    for value in (0.0, 1.0, 0.35):
        constant = torch.full_like(rewards, value)
        assert (ep_grpo(constant, ids, **tokens, progress_weight=0.0) == 0).all()
        alive = ep_grpo(constant, ids, **tokens)
        assert (alive.abs().sum(1)[tokens["mask"].sum(1) > 1] > 0).any()
        assert_close(ep_grpo(1 - constant, ids, **tokens), -alive if value != 0.5 else alive)


def test_at_the_reference_there_is_no_progress_exactly_also_in_bfloat16():
    for dtype in (torch.float32, torch.bfloat16):
        rewards, ids, tokens = batch(torch.float32)
        tokens = {k: v if k == "mask" else v.to(dtype) for k, v in tokens.items()}
        parts = ep_grpo(rewards, ids, **dict(tokens, ref_logp=tokens["logp"]), return_parts=True)
        assert (parts.progress == 0).all()


def test_parts_add_up_and_are_zero_outside_the_mask():
    rewards, ids, tokens = batch()
    parts = ep_grpo(rewards, ids, **tokens, return_parts=True)
    assert parts._fields == ("advantage", "outcome", "progress", "gate", "bucket", "anchor")
    assert_close(parts.outcome + parts.progress, parts.advantage)
    off = ~tokens["mask"]
    assert all((x[off] == 0).all() for x in (parts.advantage, parts.outcome, parts.progress, parts.gate)) and (parts.bucket[off] == -1).all()
    assert (parts.gate.sign() * parts.outcome.sign() == parts.outcome.sign()).all()  # direction kept, size changed


@given(seed=st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_permuting_rows_permutes_the_result(seed):
    rewards, ids, tokens = batch(torch.float64)
    order = torch.randperm(8, generator=torch.Generator().manual_seed(seed))
    assert_close(ep_grpo(rewards[order], ids[order], **{k: v[order] for k, v in tokens.items()}), ep_grpo(rewards, ids, **tokens)[order])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_reward_at_the_mean_has_no_anchor(dtype):
    rewards, ids, tokens = make(0, [3] * 4, [0] * 4, [0.0])
    rewards = torch.tensor([-1.0, -0.2, 0.6, -0.2], dtype=dtype)
    assert ep_grpo(rewards, ids, **tokens, return_parts=True).anchor.tolist() == [-1.0, 0.0, 1.0, 0.0]


def test_groups_do_not_touch_each_other():
    rewards, ids, tokens = batch(torch.float64)
    one = ids == 0
    alone = ep_grpo(rewards[one], ids[one], **{k: v[one] for k, v in tokens.items()})
    assert_close(alone, ep_grpo(rewards, ids, **tokens)[one])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_dtype_follows_the_rewards_and_nothing_carries_gradient(dtype):
    rewards, ids, tokens = batch()
    tokens["logp"] = tokens["logp"].clone().requires_grad_()
    found = ep_grpo(rewards.to(dtype), ids, **tokens)
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32) and not found.requires_grad


def test_bad_input_names_argument_and_place():
    rewards, ids, tokens = batch()
    with pytest.raises(ValueError, match=r"entropy\[2, 1\] is nan"):
        ep_grpo(rewards, ids, **dict(tokens, entropy=tokens["entropy"].index_put((torch.tensor(2), torch.tensor(1)), torch.tensor(math.nan))))
    with pytest.raises(ValueError, match="mask must be bool"):
        ep_grpo(rewards, ids, **dict(tokens, mask=tokens["mask"].float()))
    wild = tokens["logp"].masked_fill(~tokens["mask"], -math.inf)  # outside the mask anything goes
    assert torch.isfinite(ep_grpo(rewards, ids, **dict(tokens, logp=wild))).all()
