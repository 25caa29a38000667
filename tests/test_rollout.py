"The sampler: rows keep their identity, lengths are exact, seeds are seeds."

import pytest
import torch
from test_policy import FAMILIES, build
from torch.testing import assert_close

from grpo_repro.policy import score
from grpo_repro.rollout import Rollouts, rollout, sample

PROMPTS = [[5, 9, 11], [7], [8, 20, 21, 22, 30]]


@pytest.mark.parametrize("family", FAMILIES)
def test_sampler_and_scorer_agree_on_every_token(family):
    "Finished rows leave the cache early: a mixed-up row would show here."
    model = build(family)
    ids, mask, logp, _ = sample(
        model, PROMPTS, 16, max_new_tokens=12, eos_ids=[1, 3, 4, 6, 10, 12, 13, 14], temperature=1.5, generator=torch.Generator().manual_seed(0)
    )
    assert mask.sum(1).min() < 4 and mask.sum(1).max() > 8  # rows did end at different times
    rows = [p for p in PROMPTS for _ in range(16)]
    assert_close(score(model, rows, ids, mask, temperature=1.5).logp.detach(), logp, atol=2e-4, rtol=1e-3)


def test_the_sample_is_distributed_as_the_model_says():
    model = build("Qwen2")
    ids, *_ = sample(model, [[5, 9]], 4000, max_new_tokens=1, eos_ids=[1], generator=torch.Generator().manual_seed(3))
    p = model(input_ids=torch.tensor([[5, 9]])).logits[0, -1].softmax(-1)
    counts = torch.bincount(ids[:, 0], minlength=61)
    chi2 = ((counts - 4000 * p) ** 2 / (4000 * p)).sum()
    assert chi2 < 60 + 5 * (2 * 60) ** 0.5


def test_completions_that_reach_the_limit_have_exactly_that_many_positions():
    "One too many or too few positions when completions reach the limit."
    model = build("Llama")
    found = rollout(model, PROMPTS, 2, max_new_tokens=5, eos_ids=[60], temperature=1.0, generator=torch.Generator().manual_seed(1))
    assert found.mask.shape[1] <= 5
    for row, m, cut in zip(found.completion_ids, found.mask, found.truncated):
        assert bool(cut) == (60 not in row[m].tolist())
        assert int(m.sum()) == 5 or row[m][-1] == 60


def test_mask_ends_with_eos_and_portions_change_nothing_but_the_draws():
    model = build("Llama")
    greedy = [rollout(model, PROMPTS, 2, max_new_tokens=9, eos_ids=[1, 9, 17], temperature=0, batch_size=b) for b in (2, 100)]
    for a, b, m, n in zip(greedy[0].completion_ids, greedy[1].completion_ids, greedy[0].mask, greedy[1].mask):
        assert a[m].tolist() == b[n].tolist()


def test_select_and_cat_keep_rows_together():
    parts = [rollout(build("Llama"), PROMPTS[:2], 3, max_new_tokens=n, eos_ids=[60], generator=torch.Generator().manual_seed(n)) for n in (3, 6)]
    both = Rollouts.cat(parts)
    picked = both.select(torch.tensor([7, 0]))
    assert picked.prompt_ids == [both.prompt_ids[7], both.prompt_ids[0]]
    assert picked.completion_ids[0][picked.mask[0]].tolist() == parts[1].completion_ids[1][parts[1].mask[1]].tolist()
