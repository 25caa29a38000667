"Scores against full logits, row by row, on several families, with gradients."

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from grpo_repro import policy
from grpo_repro.policy import LEAST, by_length, can_share, score

COMMON = dict(
    vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64
)
FAMILIES = {
    "Llama": {},
    "Qwen2": {},
    "Qwen3": {"head_dim": 8},
    "Gemma2": {"head_dim": 8, "final_logit_softcapping": 5.0, "sliding_window": 6},
    "Gemma3Text": {"head_dim": 8, "sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]},
    "Granite": {"logits_scaling": 3.0},
    "Cohere": {"logit_scale": 0.25},
}


def build(family):
    config = getattr(transformers, f"{family}Config")(**{**COMMON, **FAMILIES[family], "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = getattr(transformers, f"{family.removesuffix('Text')}ForCausalLM")(config)
        for p in model.parameters():  # wide enough for logits that differ
            p.data += 0.05 * torch.randn_like(p)
    return model.eval()


def plain_scores(model, prompts, completions, mask, temperature):
    "Full logits of one row at a time: log-probabilities with gradient and entropies, each (B, T)."
    logp, entropy = torch.zeros(mask.shape), torch.zeros(mask.shape)
    for i, p in enumerate(prompts):
        n = int(mask[i].sum())
        if n == 0:
            continue
        logits = model(input_ids=torch.tensor([p + completions[i, :n].tolist()])).logits[0, len(p) - 1 : -1] / temperature
        logp = logp.index_put((torch.full((n,), i), torch.arange(n)), logits.log_softmax(-1).gather(-1, completions[i, :n, None])[:, 0])
        entropy[i, :n] = torch.distributions.Categorical(logits=logits.detach()).entropy()
    return logp, entropy


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("share", [False, True, None])
@pytest.mark.parametrize("case", ["ragged", "longer than the window", "one prompt"])
def test_scores_and_gradients_equal_the_plain_way(family, share, case):
    model = build(family)
    g = torch.Generator().manual_seed(1)
    lengths = {"ragged": (1, 5, 9), "longer than the window": (14, 3, 20), "one prompt": (7, 7, 7)}[case]
    texts = [torch.randint(3, 61, (n,), generator=g).tolist() for n in lengths]
    prompts = [texts[i if case != "one prompt" else 0] for i in (0, 1, 0, 2, 2, 1, 0, 2)]
    completions = torch.randint(3, 61, (8, 30), generator=g)
    mask = torch.arange(30) < torch.tensor([7, 2, 30, 1, 12, 1, 3, 0])[:, None]
    found = score(model, prompts, completions, mask, temperature=1.3, share=share)
    plain, entropy = plain_scores(model, prompts, completions, mask, 1.3)
    assert_close(found.logp.detach(), plain.detach(), atol=1e-5, rtol=1e-5)
    assert_close(found.entropy, entropy, atol=1e-5, rtol=1e-5)
    weights, upstream = list(model.parameters()), torch.randn(mask.shape, generator=g)
    ours = torch.autograd.grad((found.logp * upstream).sum(), weights, allow_unused=True)
    theirs = torch.autograd.grad((plain * upstream).sum(), weights, allow_unused=True)
    for a, b in zip(ours, theirs):
        assert (a is None) == (b is None)
        if a is not None:
            assert_close(a, b, atol=1e-4, rtol=1e-3)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 400), min_size=1, max_size=80))
def test_parts_hold_each_row_once_and_little_padding(lengths):
    lengths = torch.tensor(lengths)
    parts = by_length(lengths)
    assert sorted(torch.cat(parts).tolist()) == list(range(len(lengths)))
    for part in parts:
        mine = lengths[part].sort().values
        padding = len(mine) * int(mine[-1]) - int(mine.sum())
        best = max(((k * int(mine[-1] - mine[k - 1])) for k in range(1, len(mine))), default=0)
        assert padding <= 0.1 * len(mine) * int(mine[-1]) or best < LEAST


SHAPES = [(1.0, None, 1.0), (0.25, None, 0.7), (1 / 3, 5.0, 1.3), (2.0, 1.5, 1.0)]


@pytest.mark.parametrize(("scale", "cap", "temperature"), SHAPES)
@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_the_head_is_exact_in_float64_with_gradients(monkeypatch, scale, cap, temperature, chunk):
    monkeypatch.setattr(policy, "CHUNK", chunk * 53)
    g = torch.Generator().manual_seed(chunk)
    hidden, weight = (torch.randn(n, 16, generator=g, dtype=torch.float64).requires_grad_() for n in (40, 53))
    targets, upstream = torch.randint(0, 53, (40,), generator=g), torch.randn(40, generator=g, dtype=torch.float64)
    logp, entropy = policy._LinearHead.apply(hidden, weight, targets, policy._Shape(scale, cap, temperature))
    z = scale * (hidden @ weight.T)
    plain = ((z if cap is None else cap * torch.tanh(z / cap)) / temperature).log_softmax(-1)
    assert_close(logp, plain.gather(-1, targets[:, None])[:, 0], atol=1e-12, rtol=1e-12)
    assert_close(entropy, torch.special.entr(plain.exp()).sum(-1), atol=1e-12, rtol=1e-12)
    ours = torch.autograd.grad((logp * upstream).sum(), (hidden, weight))
    theirs = torch.autograd.grad((plain.gather(-1, targets[:, None])[:, 0] * upstream).sum(), (hidden, weight))
    for a, b in zip(ours, theirs):
        assert_close(a, b, atol=1e-12, rtol=1e-12)
    assert not entropy.requires_grad


def test_a_frozen_head_still_passes_the_gradient_on():
    weight, hidden = torch.randn(20, 8), torch.randn(5, 8, requires_grad=True)
    logp, _ = policy._LinearHead.apply(hidden, weight, torch.arange(5), policy._Shape(1.0, None, 1.0))
    plain = (hidden @ weight.T).log_softmax(-1).gather(-1, torch.arange(5)[:, None])[:, 0]
    assert_close(torch.autograd.grad(logp.sum(), hidden)[0], torch.autograd.grad(plain.sum(), hidden)[0])


def test_an_entry_of_the_vocabulary_that_is_ruled_out_adds_no_nan():
    logits = torch.tensor([[0.0, 1.0, -float("inf")]])
    logp, entropy, _ = policy._of_logits(logits, torch.tensor([1]))
    assert_close(entropy, torch.distributions.Categorical(probs=logits.softmax(-1)).entropy())
    assert torch.isfinite(logp).all()


def test_a_head_that_is_not_plain_goes_chunk_by_chunk(monkeypatch):
    monkeypatch.setattr(policy, "CHUNK", 61 * 3)
    model = build("Llama")
    head = torch.nn.Linear(32, 61, bias=True)
    with torch.no_grad():
        head.bias.copy_(torch.linspace(-1, 1, 61))
    model.lm_head = head
    prompts, completions, mask = [[4, 5]] * 3, torch.randint(3, 61, (3, 6)), torch.arange(6) < torch.tensor([6, 2, 4])[:, None]
    found = score(model, prompts, completions, mask)
    plain, entropy = plain_scores(model, prompts, completions, mask, 1.0)
    assert_close(found.logp, plain, atol=1e-5, rtol=1e-5)
    assert_close(found.entropy, entropy, atol=1e-5, rtol=1e-5)
    assert_close(torch.autograd.grad(found.logp.sum(), head.bias)[0], torch.autograd.grad(plain.sum(), head.bias)[0], atol=1e-5, rtol=1e-4)


def test_a_state_space_model_takes_the_plain_way():
    config = transformers.MambaConfig(vocab_size=61, hidden_size=16, state_size=4, num_hidden_layers=2)
    model = transformers.MambaForCausalLM(config).eval()
    assert not can_share(model)
    prompts, completions, mask = [[4, 5, 6, 7, 8]] * 4, torch.randint(3, 61, (4, 5)), torch.arange(5) < torch.tensor([5, 2, 4, 1])[:, None]
    assert_close(score(model, prompts, completions, mask).logp, plain_scores(model, prompts, completions, mask, 1.0)[0], atol=1e-5, rtol=1e-5)


def test_gradient_checkpointing_takes_the_plain_way_and_changes_nothing():
    model = build("Qwen3")
    prompts, completions, mask = [[4, 5, 6, 7, 8]] * 4, torch.randint(3, 61, (4, 5)), torch.arange(5) < torch.tensor([5, 2, 4, 1])[:, None]
    shared = torch.autograd.grad(score(model, prompts, completions, mask, share=True).logp.sum(), model.model.layers[0].mlp.up_proj.weight)[0]
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    assert not can_share(model)
    again = torch.autograd.grad(score(model, prompts, completions, mask).logp.sum(), model.model.layers[0].mlp.up_proj.weight)[0]
    assert_close(again, shared, atol=1e-5, rtol=1e-4)
    with torch.no_grad():
        assert can_share(model)


@pytest.mark.parametrize("share", [True, False])
def test_a_lora_adapter_is_part_of_the_policy_and_can_be_switched_off(share):
    peft = pytest.importorskip("peft")
    model = build("Qwen2")
    prompts, completions, mask = [[4, 5, 6]] * 4, torch.randint(3, 61, (4, 5)), torch.arange(5) < torch.tensor([5, 2, 4, 1])[:, None]
    before = score(model, prompts, completions, mask, share=share)
    tuned = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM"))
    found = score(tuned, prompts, completions, mask, share=share)
    assert float((found.logp - before.logp).detach().abs().max()) > 1e-3
    assert_close(found.logp, plain_scores(tuned, prompts, completions, mask, 1.0)[0], atol=1e-5, rtol=1e-5)
    with tuned.disable_adapter():
        assert_close(score(tuned, prompts, completions, mask, share=share).logp, before.logp)


def test_eos_counts_even_where_it_is_also_the_padding():
    "The completion mask inferred from pad ids: with pad = EOS the EOS would never be trained."
    model = build("Llama")
    completions = torch.tensor([[5, 6, 1, 1, 1]])  # EOS, then padding with the same id
    mask = torch.arange(5)[None] < 3
    found = score(model, [[4]], completions, mask)
    assert (found.logp[0, :3] < 0).all() and (found.logp[0, 3:] == 0).all()
    a = torch.autograd.grad(found.logp[0, 2], model.parameters(), allow_unused=True)
    assert any(x is not None and x.abs().sum() > 0 for x in a)


def test_policy_and_reference_agree_to_the_bit_in_bfloat16():
    "Identical micro-batches: rounding noise must not look like a signal."
    model = build("Qwen2").to(torch.bfloat16)
    import copy

    twin = copy.deepcopy(model)
    completions = torch.randint(3, 61, (4, 6), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(6) < torch.tensor([6, 3, 1, 5])[:, None]
    prompts = [[3], [4, 5], [6, 7, 8], [9]]
    assert torch.equal(score(model, prompts, completions, mask).logp, score(twin, prompts, completions, mask).logp)
