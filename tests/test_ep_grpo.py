"EP-GRPO against a plain loop in float64, its exact reductions, and its faults."

import math
import os
import statistics
import subprocess
import sys

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
@settings(max_examples=300, deadline=None)
def test_equals_the_plain_loop(seed, rows, levels, options, nan):
    lengths, groups = zip(*rows)
    rewards, ids, tokens = make(seed, lengths, groups, levels, nan=nan)
    assert_close(ep_grpo(rewards, ids, **tokens, **options), oracle(rewards, ids, **tokens, **options), rtol=1e-9, atol=1e-9)


@given(
    seed=st.integers(0, 10**6),
    rows=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 2)), min_size=1, max_size=10),
    levels=st.sampled_from([[0.0, 1.0], [0.35], [-1.0, -0.2, 0.6]]),
    constant=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_float32_is_close_to_the_loop_also_with_constant_entropies(seed, rows, levels, constant):
    lengths, groups = zip(*rows)
    rewards, ids, tokens = make(seed, lengths, groups, levels, dtype=torch.float32)
    if constant:
        tokens["entropy"] = torch.full_like(tokens["entropy"], 0.7)
    found = ep_grpo(rewards, ids, **tokens)
    assert found.dtype == torch.float32
    assert_close(found.double(), oracle(rewards, ids, **tokens), rtol=1e-4, atol=1e-4)


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
    with pytest.raises(ValueError, match=r"ref_logp\[1, 3\] is -inf .*row 1, token 3"):
        ep_grpo(rewards, ids, **dict(tokens, ref_logp=tokens["ref_logp"].index_put((torch.tensor(1), torch.tensor(3)), torch.tensor(-math.inf))))
    with pytest.raises(ValueError, match=r"entropy\[0, 0\] is -0.5"):
        ep_grpo(rewards, ids, **dict(tokens, entropy=torch.full_like(tokens["entropy"], -0.5)))
    for name in ("entropy", "logp", "ref_logp"):
        with pytest.raises(ValueError, match=f"{name} must have the shape of mask"):
            ep_grpo(rewards, ids, **dict(tokens, **{name: tokens[name][:, :-1]}))
    with pytest.raises(ValueError, match="mask must be bool of shape"):
        ep_grpo(rewards[:-1], ids[:-1], **tokens)
    with pytest.raises(ValueError, match="mask must be bool"):
        ep_grpo(rewards, ids, **dict(tokens, mask=tokens["mask"].float()))
    wild = tokens["logp"].masked_fill(~tokens["mask"], -math.inf)  # outside the mask anything goes
    assert torch.isfinite(ep_grpo(rewards, ids, **dict(tokens, logp=wild))).all()


def test_documented_values_where_there_is_little_to_compare():
    rewards, ids, tokens = batch(torch.float64)
    empty = tokens["mask"].clone()
    empty[2] = False
    found = ep_grpo(rewards, ids, **dict(tokens, mask=empty))
    assert torch.isfinite(found).all() and (found[2] == 0).all()
    assert torch.isfinite(ep_grpo(rewards, ids, **dict(tokens, mask=torch.zeros_like(empty)))).all()
    parts = ep_grpo(rewards, torch.arange(8), **tokens, return_parts=True)  # groups of one
    assert (parts.outcome == 0).all() and torch.isfinite(parts.advantage).all() and (parts.anchor == torch.where(rewards > 0.5, 1.0, -1.0)).all()
    one = {k: v[:, :1] for k, v in tokens.items()}  # responses of length one: all in the last bucket
    parts = ep_grpo(rewards, ids, **one, return_parts=True)
    assert torch.isfinite(parts.advantage).all() and (parts.bucket == 9).all()
    rounding = dict(tokens, entropy=tokens["entropy"] - 1e-7)
    assert torch.isfinite(ep_grpo(rewards, ids, **rounding)).all()


def test_without_a_threshold_zero_variance_groups_have_no_anchor():
    rewards, ids, tokens = batch(torch.float64)
    rewards[ids == 0], rewards[ids == 1] = 1.0, torch.tensor([0.0, 1.0, 1.0, 0.0]).double()
    parts = ep_grpo(rewards, ids, **tokens, reward_threshold=None, return_parts=True)
    whole = ep_grpo(rewards, ids, **tokens)
    assert (parts.advantage[ids == 0] == 0).all() and torch.equal(parts.advantage[ids == 1], whole[ids == 1])


def test_its_memory_stays_below_sixteen_of_its_inputs():
    "Peak of the process while 512 responses of 4,096 tokens are shaped, in units of one (B, T) float32 tensor."
    code = """
import torch
from grpo_repro.advantages import ep_grpo
g = torch.Generator().manual_seed(0)
b, t = 512, 4096
made = [torch.rand(b, t, generator=g) for _ in range(3)]
tokens = dict(mask=torch.ones(b, t, dtype=torch.bool), entropy=made[0], logp=-made[1], ref_logp=-made[2])
call = lambda: ep_grpo(torch.randint(0, 2, (b,), generator=g).float(), torch.arange(b) // 8, **tokens)
read = lambda key: next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(key))
call()
open("/proc/self/clear_refs", "w").write("5")
before = read("VmRSS")
call()
print((read("VmHWM") - before) / (b * t * 4))
"""
    if not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("the peak of a process can be read on Linux only")
    env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}  # what is freed goes back at once, so that the peak is that of live tensors
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert 1 < float(done.stdout) < 16
