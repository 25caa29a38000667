"The trainer: determinism, resume, accumulation, dead groups, bad input."

import copy
import json
import math

import pytest
import torch
from datasets import Dataset
from torch.testing import assert_close

from grpo_repro import advantages as adv
from grpo_repro.batch import Signal
from grpo_repro.checkpoint import checkpoints
from grpo_repro.config import Config, check_config
from grpo_repro.data import load_policy, load_rows
from grpo_repro.logbook import GLOSSARY, read_metrics
from grpo_repro.rewards import RewardError
from grpo_repro.tasks import running_sums_reward
from grpo_repro.trainer import Trainer
from grpo_repro.verifier_sums import RATED

SMALL = dict(questions_per_step=4, group_size=4, steps=4, warmup_steps=1, tensorboard=False, save_every=2, lr=1e-3)


def make(tmp_path, reward=None, **changes):
    return Trainer(Config(**{**SMALL, "out": str(tmp_path), **changes}), reward=reward)


def weights(trainer):
    return {k: v.clone() for k, v in trainer.model.state_dict().items()}


def same(a, b):
    return all(torch.equal(a[k], b[k]) for k in a)


def test_a_seed_gives_one_run(tmp_path):
    runs = []
    for name in "ab":
        trainer = make(tmp_path / name)
        rows = trainer.train(progress=False)
        runs.append((weights(trainer), [{k: v for k, v in r.items() if not k.startswith("time/")} for r in rows]))
    assert same(runs[0][0], runs[1][0]) and runs[0][1] == runs[1][1]
    other = make(tmp_path / "c", seed=1)
    other.train(progress=False)
    assert not same(runs[0][0], weights(other))


@pytest.mark.parametrize("changes", [{}, {"dynamic_sampling": True, "questions_per_step": 3}, {"beta": 0.05}, {"dtype": "bfloat16"}])
def test_resume_equals_an_uninterrupted_run(tmp_path, changes):
    "A restored RNG overwritten by set_seed on resume; data order not restored."
    whole = make(tmp_path / "whole", **changes)
    rows = whole.train(progress=False)
    half = make(tmp_path / "half", **{**changes, "steps": 2})
    half.train(progress=False)
    rest = make(tmp_path / "half", resume=True, **changes)
    again = rest.train(progress=False)
    assert same(weights(whole), weights(rest))
    key = "reward/mean"
    assert [r[key] for r in rows] == [r[key] for r in again] and [r["step"] for r in again] == [1, 2, 3, 4]


@pytest.mark.parametrize("aggregation", ["token", "sequence", "constant"])
@pytest.mark.parametrize("extra", [{}, {"beta": 0.1}, {"denominator": "live"}, {"mask_truncated": True, "max_new_tokens": 14}])
def test_micro_batches_do_not_change_the_update(tmp_path, aggregation, extra):
    results = []
    for micro in (3, 16):
        trainer = make(tmp_path, aggregation=aggregation, micro_batch=micro, **extra)
        trainer.step()
        results.append(weights(trainer))
    for k in results[0]:
        assert_close(results[0][k], results[1][k], atol=1e-4, rtol=1e-4)


def test_step_metrics_are_the_glossary_and_finite_json(tmp_path):
    trainer = make(tmp_path, beta=0.01)
    trainer.train(progress=False)
    rows = read_metrics(tmp_path / "metrics.jsonl")
    for row in rows:
        assert set(row) == {"step", *GLOSSARY}
        assert all(v is None or math.isfinite(v) for v in row.values())
    assert rows[-1]["policy/kl"] >= 0 and rows[0]["policy/clipped"] == 0
    assert "NaN" not in (tmp_path / "metrics.jsonl").read_text()
    assert (tmp_path / "curves.png").stat().st_size > 10_000


def test_a_step_without_a_live_token_is_skipped_and_counted(tmp_path):
    trainer = make(tmp_path, reward=lambda completions, **_: [1.0] * len(completions))
    before = weights(trainer)
    metrics = trainer.step()
    assert same(before, weights(trainer)) and metrics["train/skipped"] == 1 and metrics["groups/zero_variance"] == 1.0
    assert metrics["policy/grad_norm"] is None


def test_a_skipped_step_leaves_adams_momentum_alone(tmp_path):
    constant = []
    trainer = make(tmp_path, reward=lambda c, **kw: [1.0] * len(c) if constant else running_sums_reward(c, **kw))
    trainer.step()
    before = weights(trainer)
    constant.append(True)
    trainer.step()
    assert same(before, weights(trainer))


def test_truncated_everything_masked_is_skipped(tmp_path):
    trainer = make(tmp_path, mask_truncated=True, max_new_tokens=1)
    assert trainer.step()["train/skipped"] == 1


@pytest.mark.parametrize(("pulled", "expected"), [(True, False), (False, True)])
def test_kl_on_dead_groups_is_an_option(tmp_path, pulled, expected):
    "Dead groups still pulled by the KL term."
    trainer = make(tmp_path, reward=lambda c, **_: [1.0] * len(c), beta=0.5, kl_on_zero_variance=pulled)
    with torch.no_grad():  # away from the reference, so that there is something to pull back
        for p in trainer.model.parameters():
            p.add_(0.01 * torch.randn(p.shape, generator=torch.Generator().manual_seed(0)))
    before = weights(trainer)
    metrics = trainer.step()
    assert same(before, weights(trainer)) is expected
    assert metrics["train/skipped"] == int(expected)


def test_live_denominator_scales_the_gradient_up(tmp_path):
    norms = {d: make(tmp_path, denominator=d).step() for d in ("all", "live")}
    share = norms["all"]["groups/zero_variance"]
    assert 0 < share < 1
    assert norms["live"]["policy/grad_norm"] > norms["all"]["policy/grad_norm"]


def test_dynamic_sampling_trains_on_disagreeing_groups_only(tmp_path):
    trainer = make(tmp_path, dynamic_sampling=True, questions_per_step=8, max_sampling_rounds=6)
    batch, position = trainer.collect(trainer._generator(1))
    assert not adv.zero_variance(batch.rewards, batch.groups).any()
    assert len(batch.groups.unique()) == 8 and batch.sampled_groups > 8 and position == batch.sampled_groups
    assert len(batch.texts) == len(batch.rewards) == len(batch.rollouts) == 32


def test_dynamic_sampling_without_any_live_group_ends(tmp_path):
    trainer = make(tmp_path, reward=lambda c, **_: [0.0] * len(c), dynamic_sampling=True, max_sampling_rounds=3)
    metrics = trainer.step()
    assert metrics["groups/sampled"] == 12 and metrics["train/skipped"] == 1


def test_unscored_responses_get_no_gradient(tmp_path):
    seen = {}

    def reward(completions, **columns):
        values = [None if i % 4 == 0 else v for i, v in enumerate(running_sums_reward(completions, **columns))]
        seen["n"] = len(values)
        return values

    trainer = make(tmp_path, reward=reward)
    metrics = trainer.step()
    assert metrics["reward/unscored"] == 0.25
    trainer = make(tmp_path, reward=lambda c, **_: [None] * len(c))
    metrics = trainer.step()
    assert metrics["reward/mean"] is None and metrics["train/skipped"] == 1


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "static", "corpo", "ep_grpo"])
def test_every_estimator_trains(tmp_path, name):
    trainer = make(tmp_path, advantage=name, threshold=1.0)
    before = weights(trainer)
    metrics = trainer.step()
    assert not same(before, weights(trainer)) and metrics["advantage/failed_but_reinforced"] == 0


def test_ep_grpo_at_its_first_step_has_no_progress_and_later_has(tmp_path):
    trainer = make(tmp_path, advantage="ep_grpo", micro_batch=5, dtype="bfloat16", lr=0.01)
    signals = []
    for _ in range(2):
        batch, _ = trainer.collect(trainer._generator(trainer.done + 1))
        trainer.one_pass = False
        signal = trainer.signal(batch)
        signals.append(float((signal.logp - signal.reference).abs().max()))
        trainer.one_pass = True
        trainer.step()
    assert signals[0] == 0.0 and signals[1] > 0.0


@pytest.mark.parametrize("one_pass", [True, False])
def test_the_first_update_in_bfloat16_is_that_of_the_gate_alone(tmp_path, one_pass):
    "Policy = reference: rounding noise is not z-scored into a signal."
    results = []
    for weight in (0.2, 0.0):
        trainer = make(tmp_path, advantage="ep_grpo", dtype="bfloat16", micro_batch=8, lr=0.01, advantage_kwargs={"progress_weight": weight})
        trainer.one_pass = one_pass
        start = weights(trainer)
        metrics = trainer.step()
        assert metrics["ep/progress_share"] == 0 and not same(start, weights(trainer))
        results.append(weights(trainer))
    assert same(*results)


@pytest.mark.parametrize("extra", [{}, {"mask_truncated": True, "max_new_tokens": 14}, {"beta": 0.1}, {"beta": 0.1, "kl_on_zero_variance": False}])
def test_one_pass_is_two_passes(tmp_path, extra):
    "Advantages made between forward and backward of a micro-batch of whole groups are those made for the whole batch before."
    results = []
    for one_pass in (True, False):
        trainer = make(tmp_path, advantage="ep_grpo", micro_batch=8, warmup_steps=0, **extra)
        assert trainer.one_pass
        trainer.one_pass = one_pass
        rows = [trainer.step() for _ in range(2)]
        results.append((weights(trainer), rows[1]))
    for k in results[0][0]:
        assert_close(results[0][0][k], results[1][0][k], atol=1e-4, rtol=1e-4)
    for k, v in results[0][1].items():
        if v is not None and not k.startswith("time/"):
            assert_close(v, results[1][1][k], atol=1e-3, rtol=1e-3)


def test_an_estimator_whose_groups_do_not_fit_a_micro_batch_takes_two_passes(tmp_path):
    trainer = make(tmp_path, advantage="ep_grpo", micro_batch=3)
    assert not trainer.one_pass and trainer.step()["policy/grad_norm"] > 0
    assert not make(tmp_path, advantage="ep_grpo", epochs_per_step=2).one_pass and not make(tmp_path).one_pass


def test_a_step_without_any_advantage_is_skipped_and_counted_also_in_one_pass(tmp_path):
    trainer = make(tmp_path, reward=lambda completions, **_: [1.0] * len(completions), advantage="ep_grpo")
    before = weights(trainer)
    metrics = trainer.step()  # policy = reference and all groups agree
    assert metrics["train/skipped"] == 1 and same(before, weights(trainer)) and metrics["policy/grad_norm"] is None
    assert metrics["ep/live_zero_variance"] == 0 and metrics["ep/anchor_right"] == 1


def test_ep_grpo_moves_on_zero_variance_groups_once_the_policy_has_left_its_reference(tmp_path):
    trainer = make(tmp_path, reward=lambda completions, **_: [1.0] * len(completions), advantage="ep_grpo")
    with torch.no_grad():
        for i, p in enumerate(trainer.model.parameters()):
            p.add_(0.02 * p.std().nan_to_num() * torch.randn(p.shape, generator=torch.Generator().manual_seed(i)))
    before = weights(trainer)
    metrics = trainer.step()
    assert metrics["groups/zero_variance"] == 1 and metrics["ep/live_zero_variance"] > 0.5 and metrics["ep/progress_share"] == 1
    assert not same(before, weights(trainer))


def test_one_update_is_strictly_on_policy_also_for_ep_grpo_in_bfloat16(tmp_path):
    trainer = make(tmp_path, advantage="ep_grpo", dtype="bfloat16", micro_batch=3, clip_low=1e-6, clip_high=1e-6)
    assert [trainer.step()["policy/clipped"] for _ in range(2)] == [0.0, 0.0]


def test_missing_sampler_scores_change_nothing_but_the_log(tmp_path):
    "Sampler log-probs missing or NaN used as if real."
    results = []
    for missing in (False, True):
        trainer = make(tmp_path)
        batch, _ = trainer.collect(trainer._generator(1))
        if missing:
            batch.rollouts.sampler_logp.fill_(math.nan)
        trainer.update(batch, Signal(adv.grpo(batch.rewards, batch.groups)))
        results.append(weights(trainer))
    assert same(*results)


def test_silent_responses_are_not_run_again_and_the_update_is_the_same(tmp_path):
    "Leaving out responses without an advantage is exact: a vanishing KL weight brings them back, and changes nothing."
    left_out, all_in = make(tmp_path), make(tmp_path, beta=1e-12)
    assert left_out.step()["groups/zero_variance"] > 0
    all_in.step()
    for k, v in weights(left_out).items():
        assert_close(v, weights(all_in)[k], atol=1e-4, rtol=1e-4)


def test_strictly_on_policy_has_ratio_one_and_several_updates_do_not(tmp_path):
    one = make(tmp_path).step()
    several = make(tmp_path, epochs_per_step=3, updates_per_epoch=2, lr=3e-3).step()
    assert one["policy/clipped"] == 0 and several["policy/clipped"] > 0


def test_the_gradient_is_that_of_the_advantages(tmp_path):
    "One step by hand: sample, score, weigh, differentiate."
    trainer = make(tmp_path, micro_batch=5)
    twin = copy.deepcopy(trainer.model)
    batch, _ = trainer.collect(trainer._generator(1))
    a = adv.grpo(batch.rewards, batch.groups)
    total = 0
    for i, prompt in enumerate(batch.rollouts.prompt_ids):
        n = int(batch.rollouts.mask[i].sum())
        ids = torch.tensor([prompt + batch.rollouts.completion_ids[i, :n].tolist()])
        logp = twin(input_ids=ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        total = total - a[i] * logp.gather(-1, ids[0, len(prompt) :, None]).sum()
    (total / batch.rollouts.mask.sum()).backward()
    norm = torch.cat([p.grad.flatten() for p in twin.parameters()]).norm()
    assert_close(torch.tensor(trainer.step()["policy/grad_norm"]), norm.detach(), rtol=1e-3, atol=1e-5)


# ---- bad input


def test_a_reward_that_raises_names_the_row_and_leaves_a_checkpoint(tmp_path):
    calls = []

    def reward(completions, answer, prompt, **_):
        calls.append(1)
        if len(calls) >= 3:
            return [1 / (len(p) % 2 * 0 + (p != prompt[5])) for p in prompt]
        return running_sums_reward(completions, answer)

    trainer = make(tmp_path, reward=reward, save_every=0)
    with pytest.raises(RewardError, match=r"raised ZeroDivisionError.*row \d+ of the data"):
        trainer.train(progress=False)
    assert [p.name for p in checkpoints(trainer.out)] == ["step_000002"]
    rest = make(tmp_path, resume=True)
    assert len(rest.train(progress=False)) == 4


@pytest.mark.parametrize(
    ("returned", "match"), [([1.0], "returned 1 rewards for 16"), (["x"] * 16, "expected a number or None"), ([math.inf] * 16, "must be finite")]
)
def test_broken_rewards_are_named(tmp_path, returned, match):
    with pytest.raises(RewardError, match=match):
        make(tmp_path, reward=lambda c, **_: returned).step()


def test_bad_data_and_models_are_named(tmp_path):
    one = tmp_path / "one.jsonl"
    one.write_text(json.dumps({"prompt": "1+2=", "answer": "3"}) + "\n")
    assert make(tmp_path, data=str(one)).step()["groups/sampled"] == 1  # one row is enough
    (tmp_path / "empty.jsonl").write_text("")
    for changes, match in [
        ({"data": str(tmp_path / "empty.jsonl")}, "is empty"),
        ({"data": str(tmp_path / "none.jsonl")}, "no such file"),
        ({"data": str(one), "prompt_column": "question"}, r"no column 'question'; there are 'prompt', 'answer'"),
        ({"model": str(tmp_path / "no_model")}, "no such folder"),
        ({"model": str(tmp_path)}, "could not be loaded"),
        ({"reward": "maths"}, "known are math"),
        ({"advantage": "grop"}, "known are grpo"),
        ({"advantage": "static"}, "needs threshold"),
        ({"advantage_kwargs": {"gate": 1.0}}, "has no option gate"),
        ({"group_size": 1}, "at least 2 responses"),
        ({"aggregation": "mean"}, "known are token"),
        ({"temperature": 0.0}, "must be positive"),
        ({"dtype": "int8"}, "known are float32"),
    ]:
        with pytest.raises(ValueError, match=match):
            make(tmp_path, **changes)
    (tmp_path / "bad.jsonl").write_text('{"prompt": "1+1="}\n{"prompt": 1+\n')
    with pytest.raises(ValueError, match="cannot be read as json"):
        load_rows(str(tmp_path / "bad.jsonl"))
    (tmp_path / "null.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n{"prompt": "", "answer": "2"}\n')
    with pytest.raises(ValueError, match="row 1 of the data"):
        make(tmp_path, data=str(tmp_path / "null.jsonl")).step()


def test_group_of_one_is_allowed_where_it_means_something(tmp_path):
    assert make(tmp_path, advantage="static", threshold=0.5, group_size=1).step()["groups/sampled"] == 4
    with pytest.raises(ValueError, match="dynamic_sampling"):
        check_config(Config(advantage="static", threshold=0.5, group_size=1, dynamic_sampling=True))


def test_a_checkpoint_cut_short_is_not_used(tmp_path):
    trainer = make(tmp_path)
    trainer.train(progress=False)
    newest = checkpoints(trainer.out)[-1]
    (newest / "state.json").rename(newest / "elsewhere.json")
    (tmp_path / "checkpoints" / "step_000099.part").mkdir()
    rest = make(tmp_path, resume=True)
    rest.load()
    assert rest.done == 2


def test_chat_template_and_system_prompt_reach_the_model(tmp_path):
    model, tokenizer = load_policy("running_sums")
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }}:{{ m['content'] }};{% endfor %}"
    trainer = Trainer(Config(**SMALL, out=str(tmp_path), system_prompt="be brief"), model=model, tokenizer=tokenizer)
    batch, _ = trainer.collect(trainer._generator(1))
    assert tokenizer.decode(batch.rollouts.prompt_ids[0]).startswith("system:be brief;user:")


def test_evaluation_judges_by_the_reward_s_own_rule_where_it_has_one(tmp_path):
    "Ratings (5, 5) have reward 0, the threshold, and are not correct; (9, 6) for two right ones are."
    rows = Dataset.from_list([{"prompt": "1+1=", "right_a": True, "right_b": False}, {"prompt": "2+2=", "right_a": True, "right_b": True}])
    trainer = Trainer(Config(**{**SMALL, "out": str(tmp_path), "threshold": 0.0, "advantage": "corpo"}), reward="ratings", rows=rows)
    batch = trainer.sample_batch([0, 1], trainer._generator(1), 2)
    batch.texts = ["Ratings: A=5, B=5", "Ratings: A=6, B=5", "Ratings: A=9, B=6", "Ratings: A=9, B=5"]
    batch.rewards = torch.tensor([0.0, 0.1, 0.5, 0.4])
    assert trainer.sampler.right(batch, rows).tolist() == [False, True, True, False]
    trainer.sampler.reward = running_sums_reward
    assert trainer.sampler.right(batch, rows).tolist() == [True] * 4


def test_evaluation_breaks_pass_at_k_down_by_kind(tmp_path):
    trainer = make(
        tmp_path, eval_data="verifier_validation", eval_by="set", eval_questions=10, eval_samples=3, reward="ratings", threshold=0.0, model="verifier_sums"
    )
    found = trainer.evaluate()
    assert set(found["pass_at_k_by"]) == set(found["by"]) == {k.name for k in RATED["verifier_validation"]}
    for kind, by_k in found["pass_at_k_by"].items():
        assert by_k[1] == pytest.approx(found["by"][kind]) and by_k[1] <= by_k[2] <= by_k[3]
    assert found["pass_at_k"][3] == pytest.approx(sum(v[3] for v in found["pass_at_k_by"].values()) / 5)
