"Estimators against a plain loop in float64, and as properties over random batches."

import math
import statistics
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from grpo_repro import advantages
from grpo_repro.advantages import corpo, dr_grpo, grpo, rloo, static, zero_variance

RELATIVE = {"grpo": grpo, "dr_grpo": dr_grpo, "rloo": rloo}


def oracle(name: str, rewards: list[float], groups: list[int], threshold: float = 0.0, eps: float = 1e-4) -> list[float]:
    "SPEC.md, one response at a time, in Python floats."
    out = []
    for r, g in zip(rewards, groups):
        peers = [x for x, h in zip(rewards, groups) if h == g and not math.isnan(x)]
        if math.isnan(r):
            out.append(0.0)
            continue
        mean = math.fsum(peers) / len(peers)
        if max(peers) == min(peers):
            mean = peers[0]
        if name == "static":
            out.append(r - threshold)
        elif name == "corpo":
            out.append(r - max(threshold, mean))
        elif max(peers) == min(peers):
            out.append(0.0)
        elif name == "dr_grpo":
            out.append(r - mean)
        elif name == "rloo":
            out.append(r - (math.fsum(peers) - r) / (len(peers) - 1))
        else:
            out.append((r - mean) / (statistics.stdev(peers) + eps))
    return out


def call(name, rewards, groups, threshold=0.0):
    return advantages.compute(advantages.estimator(name), rewards, groups, threshold=threshold)


levels = st.sampled_from([-1.0, -0.6, -0.2, 0.0, 0.35, 0.5, 1.0, math.nan]) | st.floats(-100, 100)
batches = st.lists(st.tuples(levels, st.sampled_from([0, 1, 2, -7, 10**12])), min_size=1, max_size=40)


def split(batch):
    rewards, groups = zip(*batch)
    return torch.tensor(rewards, dtype=torch.float64), torch.tensor(groups)


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "static", "corpo"])
@given(batch=batches)
@settings(max_examples=120, deadline=None)
def test_equals_the_plain_loop(name, batch):
    rewards, groups = split(batch)
    expected = torch.tensor(oracle(name, rewards.tolist(), groups.tolist()), dtype=torch.float64)
    assert_close(call(name, rewards, groups), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "static", "corpo"])
@given(batch=batches, seed=st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_permuting_the_rows_permutes_the_result(name, batch, seed):
    rewards, groups = split(batch)
    order = torch.randperm(len(rewards), generator=torch.Generator().manual_seed(seed))
    assert_close(call(name, rewards[order], groups[order]), call(name, rewards, groups)[order], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", RELATIVE)
@given(
    batch=st.lists(st.tuples(st.sampled_from([-2.0, 0.0, 0.25, 1.0, 8.0]), st.integers(0, 3)), min_size=1, max_size=30),
    shift=st.sampled_from([-16.0, 0.5, 64.0]),
)
@settings(max_examples=60, deadline=None)
def test_a_constant_added_to_a_group_changes_nothing(name, batch, shift):
    rewards, groups = split(batch)
    moved = torch.where(groups == 0, rewards + shift, rewards)
    assert_close(RELATIVE[name](moved, groups), RELATIVE[name](rewards, groups), rtol=1e-9, atol=1e-9)


@given(batch=batches, scale=st.sampled_from([0.01, 3.0, 1000.0]))
@settings(max_examples=60, deadline=None)
def test_grpo_is_scale_free_up_to_eps(batch, scale):
    rewards, groups = split(batch)
    assert_close(grpo(rewards * scale, groups, eps=1e-4 * scale), grpo(rewards, groups), rtol=1e-6, atol=1e-6)


@given(batch=batches, threshold=st.sampled_from([-0.5, 0.0, 0.35, 2.0]), dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
@settings(max_examples=200, deadline=None)
def test_corpo_guarantee(batch, threshold, dtype):
    "A failed response's advantage is negative, always; worse failures of a group get less; right ones get more than failed ones."
    rewards, groups = split(batch)
    rewards = rewards.to(dtype)
    found = corpo(rewards, groups, threshold=threshold)
    bar = torch.tensor(threshold, dtype=torch.float64).to(dtype)
    failed = rewards < bar
    assert (found[failed] < 0).all()
    for g in groups.unique():
        mine = (groups == g) & ~torch.isnan(rewards)
        order = rewards[mine].double().argsort()
        assert (found[mine][order].diff() >= 0).all()


def test_corpo_is_proportional_in_phase_one_and_dr_grpo_in_phase_two():
    groups = torch.zeros(4, dtype=torch.long)
    low, high = torch.tensor([0.6, -0.2, -0.8, -1.0]), torch.tensor([0.6, 0.2, 0.1, -0.1])
    assert_close(corpo(low, groups, threshold=0.0), low)
    assert_close(corpo(high, groups, threshold=0.0), dr_grpo(high, groups))


def test_corpo_is_continuous_where_the_phases_meet():
    groups = torch.zeros(3, dtype=torch.long)
    base = torch.tensor([0.5, 0.1, -0.6], dtype=torch.float64)  # mean exactly 0
    below, above = (corpo(base + d, groups, threshold=0.0) for d in (-1e-9, 1e-9))
    assert_close(below, above, rtol=0, atol=1e-8)


# ---- faults that public trainers had


@pytest.mark.parametrize("value", [0.35, 0.1, 1 / 3, 1e6 + 0.1, 350.35])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_constant_rewards_have_zero_advantage_exactly(value, dtype):
    "Advantages of thousands from the residue of a constant reward's std."
    rewards, groups = torch.full((7,), value, dtype=dtype), torch.zeros(7, dtype=torch.long)
    for estimator in RELATIVE.values():
        assert (estimator(rewards, groups) == 0).all()
    assert zero_variance(rewards, groups).all()
    assert (corpo(rewards, groups, threshold=value - 100) == 0).all()


def test_a_tiny_real_difference_is_not_zero_variance():
    rewards, groups = torch.tensor([1.0, 1.0 + 2**-23]), torch.zeros(2, dtype=torch.long)
    assert not zero_variance(rewards, groups).any()


def test_nan_is_out_of_every_statistic():
    rewards, groups = torch.tensor([1.0, math.nan, 0.0, math.nan, 1.0]), torch.tensor([0, 0, 0, 1, 1])
    for name in ("grpo", "dr_grpo", "rloo", "corpo", "static"):
        found = call(name, rewards, groups)
        assert found[1] == found[3] == 0 and torch.isfinite(found).all()
        assert_close(found[[0, 2]], call(name, rewards[[0, 2]], groups[[0, 2]]))
    assert zero_variance(rewards, groups).tolist() == [False, False, False, True, True]
    assert (grpo(torch.full((3,), math.nan), torch.zeros(3, dtype=torch.long)) == 0).all()


def test_infinite_reward_names_the_row():
    with pytest.raises(ValueError, match=r"rewards\[2\] is -inf"):
        corpo(torch.tensor([0.0, 1.0, -math.inf]), torch.zeros(3, dtype=torch.long), threshold=0.0)


def test_group_of_one_is_zero_for_relative_estimators():
    for estimator in RELATIVE.values():
        assert estimator(torch.tensor([5.0, 1.0, 0.0]), torch.tensor([3, 9, 9]))[0] == 0


@pytest.mark.parametrize(
    ("given_dtype", "expected"),
    [
        (torch.int64, torch.float32),
        (torch.bool, torch.float32),
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_dtype_of_the_result(given_dtype, expected):
    rewards, groups = torch.tensor([1, 0, 1, 1]).to(given_dtype), torch.tensor([0, 0, 1, 1])
    for name in ("grpo", "dr_grpo", "rloo", "static", "corpo"):
        assert call(name, rewards, groups).dtype == expected


def test_a_reward_of_exactly_the_threshold_has_not_failed():
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        rewards = torch.tensor([0.35, 0.0], dtype=dtype)
        assert static(rewards, torch.zeros(2, dtype=torch.long), threshold=0.35)[0] == 0


def test_advantages_are_detached_and_empty_batches_are_fine():
    rewards = torch.tensor([1.0, 0.0], requires_grad=True)
    assert not grpo(rewards, torch.tensor([0, 0])).requires_grad
    assert corpo(torch.tensor([]), torch.tensor([], dtype=torch.long), threshold=0.0).shape == (0,)


def test_import_surface_is_that_of_the_specification():
    import inspect

    surface = {
        "ep_grpo": ["mask", "entropy", "logp", "ref_logp", "gate", "buckets", "progress_weight", "reward_threshold", "gate_progress", "eps", "return_parts"],
        "grpo": ["eps"],
        "dr_grpo": [],
        "rloo": [],
        "static": ["threshold"],
        "corpo": ["threshold"],
        "zero_variance": [],
    }
    for name, keywords in surface.items():
        parameters = inspect.signature(getattr(advantages, name)).parameters
        assert list(parameters)[:2] == ["rewards", "groups"]
        assert [p.name for p in parameters.values() if p.kind is p.KEYWORD_ONLY] == keywords
    assert inspect.signature(grpo).parameters["eps"].default == 1e-4


def test_importing_advantages_brings_in_torch_alone():
    heavy = ("transformers", "vllm", "datasets", "openai", "matplotlib", "seaborn", "pandas")
    code = f"import sys, grpo_repro.advantages; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
