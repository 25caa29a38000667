"TA-GRPO in the trainer: pooled groups, and ratios anchored to the original question."

import pytest
import torch
from datasets import Dataset
from torch.testing import assert_close

from grpo_repro import advantages as adv
from grpo_repro.config import Config, check_config
from grpo_repro.data import encode_prompts
from grpo_repro.logbook import GLOSSARY
from grpo_repro.trainer import Trainer

ROWS = [
    {"prompt": "3+5+2=", "answer": "0", "others": ["5+3+2=", "2+3+5="]},
    {"prompt": "4+4=", "answer": "8", "others": []},
    {"prompt": "9+1+7=", "answer": "7", "others": ["7+9+1="]},
]
BASE = dict(rephrasings="others", questions_per_step=3, group_size=4, max_rephrasings=2, warmup_steps=0, tensorboard=False, steps=2, lr=1e-3)


def make(tmp_path, rows=ROWS, reward=None, **changes):
    return Trainer(Config(**{**BASE, "out": str(tmp_path), **changes}), rows=Dataset.from_list(rows), reward=reward)


def sampled(trainer):
    return trainer.sample_batch([0, 1, 2], trainer._generator(1))


def test_ragged_pools_are_the_groups_of_any_estimator(tmp_path):
    trainer = make(tmp_path)
    batch = sampled(trainer)
    assert batch.groups.tolist() == [0] * 12 + [1] * 4 + [2] * 8 and batch.rows == batch.groups.tolist()
    assert batch.rollouts.source.tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [0] * 4 + [0] * 4 + [1] * 4
    found = trainer.signal(batch).advantages
    for g in range(3):  # the formula, written out
        r = batch.rewards[batch.groups == g].double()
        expected = torch.zeros_like(r) if r.max() == r.min() else (r - r.mean()) / (r.std() + 1e-4)
        assert_close(found[batch.groups == g].double(), expected, rtol=1e-5, atol=1e-6)


def test_each_wording_is_sampled_from_its_own_prompt_and_scored_under_the_original(tmp_path, monkeypatch):
    asked, trainer = [], make(tmp_path)
    real = trainer.engine.rollout
    monkeypatch.setattr(trainer.engine, "rollout", lambda prompts, *a, **k: asked.append(prompts) or real(prompts, *a, **k))
    batch = sampled(trainer)
    texts = ["3+5+2=", "5+3+2=", "2+3+5=", "4+4=", "9+1+7=", "7+9+1="]
    assert asked == [encode_prompts(trainer.tokenizer, texts)]
    originals = encode_prompts(trainer.tokenizer, [r["prompt"] for r in ROWS])
    assert batch.rollouts.prompt_ids == [originals[g] for g in batch.groups.tolist()]
    own = make(tmp_path, ratios_under="own")
    assert sampled(own).rollouts.prompt_ids == [p for p in encode_prompts(own.tokenizer, texts) for _ in range(4)]


def by_hand(model, prompts, batch, advantages, old, low=0.2, high=0.2):
    "Gradient of the clipped surrogate, token by token, with a full forward pass for each response."
    total, loss = int(batch.rollouts.mask.sum()), 0.0
    for i, prompt in enumerate(prompts):
        n = int(batch.rollouts.mask[i].sum())
        completion = batch.rollouts.completion_ids[i, :n]
        logits = model(input_ids=torch.cat([torch.tensor(prompt), completion])[None]).logits[0]
        for t in range(n):
            logp = logits[len(prompt) - 1 + t].log_softmax(-1)[completion[t]]
            ratio, a = (logp - old[i, t]).exp(), advantages[i]
            loss = loss - torch.minimum(ratio * a, ratio.clamp(1 - low, 1 + high) * a) / total
    return torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad])


def old_by_hand(model, prompts, batch):
    out = torch.zeros(batch.rollouts.mask.shape, dtype=torch.float64)
    with torch.no_grad():
        for i, prompt in enumerate(prompts):
            n = int(batch.rollouts.mask[i].sum())
            completion = batch.rollouts.completion_ids[i, :n]
            logp = model(input_ids=torch.cat([torch.tensor(prompt), completion])[None]).logits[0].log_softmax(-1)
            out[i, :n] = logp[len(prompt) - 1 : len(prompt) - 1 + n].gather(-1, completion[:, None])[:, 0]
    return out


@pytest.mark.parametrize("moved", [0.0, 0.03])
def test_the_gradient_is_that_of_the_surrogate_with_all_ratios_under_the_original_question(tmp_path, moved):
    "By hand, in float64, before the first update (ratio 1) and after the weights have moved; not the gradient under the sampler's prompts."
    spread = lambda completions, **_: [float(i % 3) for i in range(len(completions))]
    trainer = make(tmp_path, epochs_per_step=2, max_grad_norm=1e9, reward=spread)
    trainer.model.double()
    batch = sampled(trainer)
    signal = trainer.signal(batch)
    assert not trainer.on_policy
    wordings = [ROWS[r]["prompt"] if s == 0 else ROWS[r]["others"][s - 1] for r, s in zip(batch.rows, batch.rollouts.source.tolist())]
    originals, own = batch.rollouts.prompt_ids, encode_prompts(trainer.tokenizer, wordings)
    old, old_own = (old_by_hand(trainer.model, p, batch) for p in (originals, own))
    assert_close(signal.logp.double(), old, rtol=0, atol=1e-5)
    signal.logp = old
    with torch.no_grad():
        generator = torch.Generator().manual_seed(0)
        for p in trainer.model.parameters():
            p.mul_(1 + moved * torch.randn(p.shape, generator=generator, dtype=p.dtype))
    expected = by_hand(trainer.model, originals, batch, signal.advantages.double(), old)
    wrong = by_hand(trainer.model, own, batch, signal.advantages.double(), old_own)
    caught = []
    trainer.optimiser.step = lambda *_: caught.extend(p.grad.clone() for p in trainer.model.parameters() if p.requires_grad) or 0.0
    trainer._one_update(batch, torch.arange(len(batch.rewards)), signal, __import__("collections").defaultdict(float))
    norm = sum(float((g**2).sum()) for g in expected) ** 0.5
    apart = lambda others: sum(float(((a - b) ** 2).sum()) for a, b in zip(caught, others)) ** 0.5 / norm
    assert apart(expected) < 1e-6 < 0.05 < apart(wrong)


def test_sampler_scores_never_enter(tmp_path):
    "The same update whatever the sampler says its log-probabilities were."
    found = []
    for broken in (False, True):
        trainer = make(tmp_path, epochs_per_step=2)
        batch = sampled(trainer)
        if broken:
            batch.rollouts.sampler_logp = torch.full_like(batch.rollouts.sampler_logp, -7.0)
        trainer.update(batch, trainer.signal(batch))
        found.append({k: v.clone() for k, v in trainer.model.state_dict().items()})
    assert all(torch.equal(found[0][k], found[1][k]) for k in found[0])


def test_normalisation_for_each_wording_is_an_option(tmp_path):
    batch = sampled(make(tmp_path, pooled=False))
    assert batch.groups.tolist() == [g for g in range(6) for _ in range(4)] and batch.rows == [0] * 12 + [1] * 4 + [2] * 8


@pytest.mark.parametrize("name", ["corpo", "ep_grpo", "dr_grpo"])
def test_it_composes_with_other_estimators(tmp_path, name):
    trainer = make(tmp_path, advantage=name, threshold=1.0 if name == "corpo" else None)
    first = trainer.step()
    trainer.step()
    assert set(first) | {"step"} == set(GLOSSARY) | {"step"}
    assert first["ta/reward_1"] is not None and first["ta/reward_3"] is None


def test_metrics_of_wordings_and_drift(tmp_path):
    trainer = make(tmp_path, reward=lambda completions, **_: [float(i % 5) for i in range(len(completions))])
    found = trainer.step()
    assert found["ta/zero_variance_0"] == 0.0 and found["policy/sampler_gap"] < 1e-3
    assert abs(found["ta/drift"]) > 10 * found["policy/sampler_gap"]  # another prompt, not rounding
    plain = make(tmp_path, rephrasings=None).step()
    assert all(plain[k] is None for k in GLOSSARY if k.startswith("ta/"))


def test_without_rephrasings_nothing_changes(tmp_path):
    rows = [{**r, "others": []} for r in ROWS]
    found = []
    for changes in ({}, {"rephrasings": None}):
        trainer = make(tmp_path, rows=rows, **changes)
        trainer.step()
        found.append({k: v.clone() for k, v in trainer.model.state_dict().items()})
    assert all(torch.equal(found[0][k], found[1][k]) for k in found[0])


def test_bad_rephrasings_are_named(tmp_path):
    with pytest.raises(ValueError, match="row 1 of the data: 'others' must be a list"):
        sampled(make(tmp_path, rows=[ROWS[0], {**ROWS[1], "others": None}, ROWS[2]]))
    with pytest.raises(ValueError, match="row 2 of the data: a prompt is a non-empty text"):
        sampled(make(tmp_path, rows=[*ROWS[:2], {**ROWS[2], "others": [""]}]))
    with pytest.raises(ValueError, match="no column 'others'"):
        Trainer(Config(**{**BASE, "out": str(tmp_path)}))
    with pytest.raises(ValueError, match="ratios_under"):
        check_config(Config(ratios_under="sampler"))


def test_evaluation_asks_the_original_question_alone(tmp_path):
    trainer = make(tmp_path)
    batch = trainer.sample_batch([0, 2], trainer._generator(-1), 2, Dataset.from_list(ROWS))
    assert batch.rollouts.source.tolist() == [0] * 4 and batch.groups.tolist() == [0, 0, 1, 1]


def test_pooled_groups_are_what_spec_says_for_any_ids():
    "No estimator of its own: ids of the original questions are the groups."
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 1.0])
    pooled, apart = torch.tensor([7, 7, 7, 7, 7, 3]), torch.tensor([0, 0, 0, 1, 1, 2])
    assert adv.zero_variance(rewards, apart).tolist() == [False, False, False, True, True, True]
    assert (adv.grpo(rewards, pooled)[:5] != 0).all() and (adv.grpo(rewards, apart)[3:] == 0).all()


def test_a_large_drift_is_an_alarm_once(tmp_path, recwarn):
    rows = [{**ROWS[0], "others": ["9*9*9:abc", "x"]}] * 3
    trainer = make(tmp_path, rows=rows, steps=3, reward=lambda completions, **_: [float(i % 5) for i in range(len(completions))])
    trainer.train(progress=False)
    assert sum("are they the same question" in str(w.message) for w in recwarn) == 1
    quiet = make(tmp_path / "quiet")
    quiet.train(progress=False)
    assert not quiet.alarmed
