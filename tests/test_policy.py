"Scores against full logits, row by row, on several families, with gradients."

import pytest
import torch
import transformers
from torch.testing import assert_close

from grpo_repro.policy import score

COMMON = dict(
    vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64
)
FAMILIES = {
    "Llama": {},
    "Qwen2": {},
    "Qwen3": {"head_dim": 8},
    "Gemma2": {"head_dim": 8, "final_logit_softcapping": 5.0, "sliding_window": 6},
    "Granite": {"logits_scaling": 3.0},
    "Cohere": {"logit_scale": 0.25},
}


def build(family):
    config = getattr(transformers, f"{family}Config")(**{**COMMON, **FAMILIES[family], "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = getattr(transformers, f"{family}ForCausalLM")(config)
        for p in model.parameters():  # wide enough for logits that differ
            p.data += 0.05 * torch.randn_like(p)
    return model.eval()


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_and_gradients_equal_the_plain_way(family):
    model = build(family)
    g = torch.Generator().manual_seed(1)
    prompts = [torch.randint(3, 61, (n,), generator=g).tolist() for n in (1, 5, 9)]
    completions = torch.randint(3, 61, (3, 7), generator=g)
    mask = torch.arange(7) < torch.tensor([7, 2, 4])[:, None]
    found = score(model, prompts, completions, mask, temperature=1.3)
    plain, entropy = torch.zeros(3, 7), torch.zeros(3, 7)
    rows = []
    for i, p in enumerate(prompts):
        n = int(mask[i].sum())
        logits = model(input_ids=torch.tensor([p + completions[i, :n].tolist()])).logits[0, len(p) - 1 : -1] / 1.3
        logp = logits.log_softmax(-1)
        rows.append(logp.gather(-1, completions[i, :n, None])[:, 0])
        plain[i, :n], entropy[i, :n] = rows[-1].detach(), torch.distributions.Categorical(logits=logits).entropy().detach()
    assert_close(found.logp.detach(), plain, atol=1e-5, rtol=1e-5)
    assert_close(found.entropy, entropy, atol=1e-5, rtol=1e-5)
    weights = list(model.parameters())
    ours = torch.autograd.grad(found.logp.sum(), weights, allow_unused=True)
    theirs = torch.autograd.grad(torch.cat(rows).sum(), weights, allow_unused=True)
    for a, b in zip(ours, theirs):
        assert (a is None) == (b is None)
        if a is not None:
            assert_close(a, b, atol=2e-4, rtol=1e-3)


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
