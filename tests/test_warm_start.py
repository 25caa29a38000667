"The policy that ships is the one that its command makes."

import torch

from grpo_repro.rollout import rollout
from grpo_repro.tasks import DIFFICULTIES, running_sums, running_sums_reward, warm_start

QUESTIONS, SAMPLES = 500, 8


def profile(model, tokenizer, seed):
    "Right responses for each difficulty, of QUESTIONS / 5 * SAMPLES."
    rows = running_sums(QUESTIONS, seed=4711)
    generator = torch.Generator().manual_seed(seed)
    found = rollout(
        model, [tokenizer(r["prompt"])["input_ids"] for r in rows], SAMPLES, max_new_tokens=40, eos_ids=[tokenizer.eos_token_id], generator=generator
    )
    texts = [tokenizer.decode(ids[m], skip_special_tokens=True) for ids, m in zip(found.completion_ids, found.mask)]
    rewards = torch.tensor(running_sums_reward(texts, [rows[q]["answer"] for q in found.question.tolist()])).view(QUESTIONS, SAMPLES)
    terms = torch.tensor([r["terms"] for r in rows])
    return torch.tensor([rewards[terms == d].sum() for d in DIFFICULTIES])


def test_a_remade_warm_start_has_the_same_accuracy_profile(embedded):
    "Within the sampling error of the difference of two binomials (4 sigma), for each number of terms."
    n = QUESTIONS / len(DIFFICULTIES) * SAMPLES
    shipped, remade = profile(*embedded, 0) / n, profile(*warm_start(progress=False), 1) / n
    pooled = (shipped + remade) / 2
    sigma = (2 * pooled * (1 - pooled) / n).sqrt()
    assert ((shipped - remade).abs() <= 4 * sigma).all(), (shipped, remade, sigma)
    assert shipped[0] > 0.8 and shipped[-1] < 0.3  # from easy to hopeless
