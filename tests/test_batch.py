"Cutting a batch: every response once, within the limits, prompts together, little padding."

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_repro.batch import micro_batches
from grpo_repro.policy import by_length

groups = st.lists(st.tuples(st.integers(1, 300), st.lists(st.integers(1, 200), min_size=1, max_size=8)), min_size=1, max_size=12)


def made(spec):
    prompts = [[i + 1] * n for i, (n, mine) in enumerate(spec) for _ in mine]
    lengths = torch.tensor([x for _, mine in spec for x in mine])
    return prompts, lengths, torch.tensor([i for i, (_, mine) in enumerate(spec) for _ in mine])


@settings(max_examples=150, deadline=None)
@given(groups, st.integers(1, 20), st.integers(1, 2000), st.booleans())
def test_every_response_once_and_within_the_limits(spec, rows, tokens, whole):
    prompts, lengths, group = made(spec)
    parts = micro_batches(prompts, lengths, rows=rows, tokens=tokens, whole=group if whole else None)
    assert sorted(torch.cat(parts).tolist()) == list(range(len(prompts)))
    for part in parts:
        mine = part.tolist()
        cost = sum(int(lengths[i]) for i in mine) + sum(len(p) for p in {tuple(prompts[i]) for i in mine})
        alone = len({int(group[i]) for i in mine}) == 1 if whole else len(mine) == 1
        assert alone or (cost <= tokens and len(mine) <= rows)
        if whole:
            assert all(set((group == int(group[i])).nonzero()[:, 0].tolist()) <= set(mine) for i in mine)


def test_responses_to_a_prompt_stay_together_where_they_fit():
    prompts, lengths, group = made([(50, [10, 200, 30, 40]), (50, [5, 6, 7, 300]), (20, [9] * 4)])
    for part in micro_batches(prompts, lengths, rows=4, tokens=10**6):
        assert len({int(group[i]) for i in part}) == 1


def test_padding_stays_under_a_tenth_of_what_is_computed():
    "Long-tailed lengths as they come from training, prompts of every length; by_length is what `score` cuts with."
    g = torch.Generator().manual_seed(0)
    for _ in range(20):
        lengths = (torch.randn(64, 8, generator=g).mul(0.8).exp() * 200).long().clamp(1, 2048).flatten()
        sizes = torch.randint(40, 400, (64,), generator=g)
        prompts = [[i + 1] * int(n) for i, n in enumerate(sizes) for _ in range(8)]
        real = computed = 0
        for part in micro_batches(prompts, lengths, rows=128, tokens=16384):
            of = torch.tensor([prompts[i][0] - 1 for i in part])
            for rows in (sizes[of.unique()], lengths[part] - 1):
                real += int(rows.sum())
                computed += sum(len(p) * int(rows[p].max()) for p in by_length(rows))
        assert 1 - real / computed < 0.1
