"The loss: what a token weighs, and what splitting, masking and emptiness must not change."

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from grpo_repro.loss import AGGREGATIONS, policy_loss, token_weights


def batch(lengths, seed=0, width=None):
    g = torch.Generator().manual_seed(seed)
    width = width or max(max(lengths), 1)
    mask = torch.arange(width) < torch.tensor(lengths)[:, None]
    logp, old, ref = (-torch.rand(len(lengths), width, generator=g, dtype=torch.float64) * 2 for _ in range(3))
    return mask, logp.requires_grad_(), old, ref, torch.randn(len(lengths), generator=g, dtype=torch.float64)


def naive(mask, logp, old, ref, advantages, aggregation, low, high, beta, length):
    "SPEC.md token by token, in Python."
    per_row, kept = [], []
    for i in range(len(mask)):
        terms = []
        for t in range(mask.shape[1]):
            if mask[i, t]:
                r = (logp[i, t] - old[i, t]).exp()
                a = advantages[i] if advantages.dim() == 1 else advantages[i, t]
                clipped = r.clamp(1 - low, 1 + high)
                d = ref[i, t] - logp[i, t]
                terms.append(-torch.minimum(r * a, clipped * a) + beta * (d.exp() - d - 1))
        if terms:
            per_row.append(torch.stack(terms))
            kept.append(len(terms))
    if aggregation == "token":
        return torch.cat(per_row).sum() / sum(kept)
    if aggregation == "sequence":
        return torch.stack([x.mean() for x in per_row]).mean()
    return torch.cat(per_row).sum() / (len(per_row) * length)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@given(lengths=st.lists(st.integers(0, 6), min_size=1, max_size=6).filter(any), seed=st.integers(0, 99), per_token=st.booleans())
@settings(max_examples=40, deadline=None)
def test_equals_the_plain_loop_with_gradient(aggregation, lengths, seed, per_token):
    mask, logp, old, ref, a = batch(lengths, seed)
    a = torch.randn(mask.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) if per_token else a
    weights = token_weights(mask, aggregation, length=9).double()
    found = policy_loss(logp, old, a, weights, clip_low=0.2, clip_high=0.28, ref_logp=ref, beta=0.05).loss
    expected = naive(mask, logp, old, ref, a, aggregation, 0.2, 0.28, 0.05, 9)
    assert_close(found, expected, rtol=1e-6, atol=1e-7)
    assert_close(*(torch.autograd.grad(x, logp)[0] for x in (found, expected)), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@given(cuts=st.sets(st.integers(1, 5)), seed=st.integers(0, 50))
@settings(max_examples=30, deadline=None)
def test_accumulation_changes_nothing(aggregation, cuts, seed):
    "Loss averaged per micro-batch: accumulation must not change the result."
    mask, logp, old, ref, a = batch([4, 1, 3, 6, 2, 5], seed)
    w = token_weights(mask, aggregation, length=8).double()
    edges = [0, *sorted(cuts), 6]
    whole = policy_loss(logp, old, a, w, ref_logp=ref, beta=0.1).loss
    parts = sum(policy_loss(logp[i:j], old[i:j], a[i:j], w[i:j], ref_logp=ref[i:j], beta=0.1).loss for i, j in zip(edges, edges[1:]))
    assert_close(torch.autograd.grad(parts, logp)[0], torch.autograd.grad(whole, logp)[0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_masked_responses_leave_numerator_and_denominator(aggregation):
    "Truncated tokens left out of the numerator but counted below."
    mask, logp, old, _, a = batch([4, 2, 5])
    without = mask.clone()
    without[1] = False
    found = policy_loss(logp, old, a, token_weights(without, aggregation, length=8).double()).loss
    keep = torch.tensor([0, 2])
    alone = policy_loss(logp[keep], old[keep], a[keep], token_weights(mask[keep], aggregation, length=8).double()).loss
    assert_close(found, alone)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_an_empty_mask_gives_zero_never_nan(aggregation):
    mask, logp, old, _, a = batch([0, 0], width=3)
    loss = policy_loss(logp, old, a, token_weights(mask, aggregation, length=8).double()).loss
    loss.backward()
    assert loss.item() == 0 and (logp.grad == 0).all()


def test_live_denominator_leaves_dead_groups_out():
    "Dead groups dilute the denominator unless asked not to."
    mask, logp, old, _, a = batch([4, 4, 4, 4])
    a = torch.tensor([1.0, -1.0, 0.0, 0.0], dtype=torch.float64)
    live = torch.tensor([True, True, False, False])
    full, alive = (policy_loss(logp, old, a, token_weights(mask, live=x).double()).loss for x in (None, live))
    assert_close(alive, 2 * full)


def test_huge_log_ratios_outside_the_mask_do_no_harm():
    mask, logp, old, _, a = batch([2, 1], width=3)
    wild = torch.where(mask, old, torch.tensor(-1e9, dtype=torch.float64))
    loss = policy_loss(logp, wild, a, token_weights(mask).double()).loss
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(logp.grad).all() and (logp.grad[~mask] == 0).all()


def test_kl_of_dead_groups_can_be_masked():
    mask, logp, old, ref, _ = batch([3, 3])
    w = token_weights(mask).double()
    silent = torch.zeros(2, dtype=torch.float64)
    pulled = policy_loss(logp, old, silent, w, ref_logp=ref, beta=0.1).loss
    assert torch.autograd.grad(pulled, logp)[0].abs().sum() > 0
    free = policy_loss(logp, old, silent, w, ref_logp=ref, beta=0.1, kl_weights=torch.zeros_like(w)).loss
    assert (torch.autograd.grad(free, logp)[0] == 0).all()
