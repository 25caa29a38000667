"The TRL trainer: TRL's own advantages bit for bit, SPEC's numbers on the tensors that TRL made, ranks, PEFT, pooled wordings, and refusals."

import json
import math
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

trl = pytest.importorskip("trl", reason="TRL is not installed: pip install -e '.[trl]'")

from datasets import Dataset  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

from grpo_repro import advantages as adv  # noqa: E402
from grpo_repro.cli import main  # noqa: E402
from grpo_repro.integrations.trl import GRPOConfig, GRPOTrainer  # noqa: E402
from grpo_repro.tasks import embedded_policy_path, running_sums, running_sums_reward  # noqa: E402

PATH = str(embedded_policy_path())
OPTIONS = dict(
    per_device_train_batch_size=8, gradient_accumulation_steps=2, num_generations=8, max_completion_length=24, max_steps=2, learning_rate=1e-3, report_to=[],
    use_cpu=True, bf16=False, logging_steps=1, save_strategy="no", disable_tqdm=True, seed=1, warmup_steps=0, lr_scheduler_type="constant",
)  # fmt: skip


def rows(n=32, **columns):
    return Dataset.from_list([{"prompt": r["prompt"], "answer": r["answer"]} | {k: f(r) for k, f in columns.items()} for r in running_sums(n, seed=3)])


def reward(completions, answer, **_):
    return running_sums_reward(completions, answer=answer)


class Seen(GRPOTrainer):
    "Keeps what TRL made, and what came of it."

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        self.seen = [*getattr(self, "seen", []), (self._rewards.clone(), {k: v.clone() for k, v in output.items() if isinstance(v, torch.Tensor)})]
        return output


def make(tmp_path, advantage="grpo", kwargs=None, data=None, cls=Seen, rewards=reward, model=PATH, peft=None, **changes):
    config = GRPOConfig(output_dir=str(tmp_path / "out"), advantage=advantage, advantage_kwargs=kwargs, **{**OPTIONS, **changes})
    return cls(model, rewards, config, train_dataset=data or rows(), processing_class=AutoTokenizer.from_pretrained(PATH), peft_config=peft)


def weights(trainer):
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


class Theirs(trl.GRPOTrainer):
    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        self.seen = [*getattr(self, "seen", []), output["advantages"].clone()]
        return output


@pytest.mark.parametrize("scale", ["group", "none", "batch"])
def test_grpo_is_trl_s_own_bit_for_bit_and_so_are_the_weights_after_training(scale, tmp_path):
    config = trl.GRPOConfig(output_dir=str(tmp_path / "a"), scale_rewards=scale, beta=0.01, **OPTIONS)
    theirs = Theirs(PATH, reward, config, train_dataset=rows(), processing_class=AutoTokenizer.from_pretrained(PATH))
    theirs.train()
    ours = make(tmp_path, scale_rewards=scale, beta=0.01)
    ours.train()
    assert len(theirs.seen) == len(ours.seen) == 2 and any(x.any() for x in theirs.seen)
    for a, (_, b) in zip(theirs.seen, ours.seen):
        assert torch.equal(a, b["advantages"])
    assert torch.equal(weights(theirs), weights(ours)) and not torch.equal(weights(ours), weights(make(tmp_path)))


@pytest.mark.parametrize(("name", "kwargs"), [("dr_grpo", {}), ("rloo", {}), ("static", {"threshold": 0.5}), ("corpo", {"threshold": 0.5})])
def test_the_others_are_spec_s_on_the_rewards_that_trl_gathered(name, kwargs, tmp_path):
    trainer = make(tmp_path, name, kwargs)
    trainer.train()
    moved = 0
    for rewards, output in trainer.seen:
        r = rewards[:, 0].double().view(-1, 8)
        mean = r.mean(1, keepdim=True)
        expected = {"dr_grpo": r - mean, "rloo": (r - mean) * 8 / 7, "static": r - 0.5, "corpo": r - mean.clamp(min=0.5)}[name].flatten()
        assert_close(output["advantages"].double(), expected, atol=1e-6, rtol=0)
        moved += int(expected.any())
    assert moved and trainer.state.log_history[0]["groups/zero_variance"] in (0.0, 0.5, 1.0)


def oracle(model, output):
    "Log-probabilities and entropies by a plain forward pass of each row."
    logps, entropies = torch.zeros(2, *output["completion_ids"].shape)
    for i, (p, pm, c, cm) in enumerate(zip(*(output[k] for k in ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")))):
        ids, n = torch.cat([p[pm.bool()], c[cm.bool()]]), int(cm.sum())
        with torch.no_grad():
            all_logp = model(ids[None]).logits[0, -n - 1 : -1].log_softmax(-1)
        logps[i, :n], entropies[i, :n] = all_logp.gather(1, c[:n, None])[:, 0], torch.special.entr(all_logp.exp()).sum(1)
    return logps, entropies


@pytest.mark.parametrize("changes", [{}, {"num_iterations": 2, "max_steps": 4}, {"beta": 0.05}, {"steps_per_generation": 4, "max_steps": 4}])
def test_ep_grpo_is_spec_s_on_tokens_scored_apart(changes, tmp_path):
    initial = AutoModelForCausalLM.from_pretrained(PATH)

    class WithOracle(Seen):
        def _generate_and_score_completions(self, inputs):
            output = super()._generate_and_score_completions(inputs)
            self.oracles = [*getattr(self, "oracles", []), (*oracle(self.model, output), oracle(initial, output)[0])]
            return output

    trainer = make(tmp_path, "ep_grpo", {"progress_weight": 0.3}, cls=WithOracle, **changes)
    assert trainer.beta == trainer.args.beta == changes.get("beta", 0.0)
    trainer.train()
    assert len(trainer.seen) == 2
    for step, ((rewards, output), (logp, entropy, ref)) in enumerate(zip(trainer.seen, trainer.oracles)):
        mask, groups = output["completion_mask"].bool(), torch.arange(len(rewards)) // 8
        made = output["advantages"]
        assert made.shape == mask.shape and not made[~mask].any()
        assert ("ref_per_token_logps" in output) == (trainer.beta > 0)
        if step == 0:  # policy is reference: no progress, whatever rounding does
            entropy = entropy.double()
            expected = adv.ep_grpo(rewards[:, 0], groups, mask=mask, entropy=entropy, logp=logp, ref_logp=logp, progress_weight=0.3)
        else:
            assert (logp - ref)[mask].abs().max() > 1e-3
            expected = adv.ep_grpo(rewards[:, 0], groups, mask=mask, entropy=entropy, logp=logp, ref_logp=ref, progress_weight=0.3)
        assert_close(made, expected, atol=5e-3, rtol=1e-2)
    assert trainer.state.log_history[0].get("ep/progress_share", 0.0) == 0.0
    assert any(h.get("ep/progress_share", 0.0) > 0 for h in trainer.state.log_history)


def test_ep_grpo_with_peft_takes_the_bare_model_as_reference(tmp_path):
    peft = pytest.importorskip("peft")
    lora = peft.LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    trainer = make(tmp_path, "ep_grpo", {"progress_weight": 0.3}, peft=lora)
    trainer.train()
    history = trainer.state.log_history
    assert history[0].get("ep/progress_share", 0.0) == 0.0 and any(h.get("ep/progress_share", 0.0) > 0 for h in history)
    assert all(o["advantages"].dim() == 2 for _, o in trainer.seen)


@pytest.mark.parametrize("loss", ["grpo", "dapo", "bnpo", "dr_grpo", "cispo", "sapo"])
def test_token_advantages_go_through_every_loss(loss, tmp_path):
    extra = {"epsilon_high": 5.0} if loss == "cispo" else {}
    trainer = make(tmp_path, "ep_grpo", {}, loss_type=loss, mask_truncated_completions=True, max_steps=1, **extra)
    before = weights(trainer).clone()
    trainer.train()
    assert not torch.equal(before, weights(trainer)) and torch.isfinite(weights(trainer)).all()


def test_a_response_that_one_function_cannot_score_counts_by_the_others(tmp_path):
    silent = lambda completions, **_: [None if i % 3 == 0 else 1.0 for i in range(len(completions))]
    nothing = lambda completions, **_: [None if i == 1 else 0.0 for i in range(len(completions))]
    silent.__name__, nothing.__name__ = "silent", "nothing"
    trainer = make(tmp_path, "corpo", {"threshold": 0.5}, rewards=[silent, nothing], max_steps=1, reward_weights=[2.0, 1.0])
    trainer.train()
    (_, output), logged = trainer.seen[0], trainer.state.log_history[0]
    total = torch.tensor([math.nan if i == 1 and i % 3 == 0 else 2.0 * (i % 3 != 0) for i in range(16)])
    assert_close(output["advantages"], adv.corpo(total, torch.arange(16) // 8, threshold=0.5))
    both = make(tmp_path, "corpo", {"threshold": 0.5}, rewards=lambda completions, **_: [None if i == 5 else 1.0 for i in range(len(completions))], max_steps=1)
    both.train()
    assert both.seen[0][1]["advantages"][5] == 0 and both.state.log_history[0]["reward/unscored"] == 1 / 16 and "reward/mean" in logged


@pytest.mark.parametrize(("name", "kwargs"), [("dr_grpo", {}), ("rloo", {}), ("corpo", {"threshold": 0.5}), ("ep_grpo", {})])
def test_functions_that_differ_and_add_up_to_a_constant_make_a_silent_group(name, kwargs, tmp_path):
    "Neither the spread of one function nor the residue of 0.7 + 0.3 in float32 is taken for the group's."
    one = lambda completions, **_: [0.1 * (i % 8) for i in range(len(completions))]
    other = lambda completions, **_: [0.7 - 0.1 * (i % 8) for i in range(len(completions))]
    one.__name__, other.__name__ = "one", "other"
    trainer = make(tmp_path, name, kwargs, rewards=[one, other], max_steps=1)
    trainer.train()
    (rewards, output), logged = trainer.seen[0], trainer.state.log_history[0]
    assert rewards.std(0).min() > 0.2, "each function varies"
    total = trainer._summed_rewards().view(-1, 8)
    bound = 1e-3 if name == "ep_grpo" else 1e-6  # a residue of 6e-8 over eps, 1e-4
    assert output["advantages"].abs().max() < bound
    assert (total.amax(1) - total.amin(1)).max() < 1e-6 and logged["reward/std"] < 1e-6


def test_the_last_token_is_trained_where_padding_and_end_are_one(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(PATH)
    tokenizer.pad_token = tokenizer.eos_token
    config = GRPOConfig(output_dir=str(tmp_path), advantage="ep_grpo", **{**OPTIONS, "max_steps": 1})
    trainer = Seen(PATH, reward, config, train_dataset=rows(), processing_class=tokenizer)
    trainer.train()
    ((_, output),) = trainer.seen
    made, mask, ids = output["advantages"], output["completion_mask"].bool(), output["completion_ids"]
    last = mask.sum(1) - 1
    ended = ids[torch.arange(len(ids)), last] == tokenizer.eos_token_id
    live = made.abs().sum(1) > 0
    assert (ended & live).any() and (made[torch.arange(len(ids)), last][ended & live] != 0).all()
    assert len(last.unique()) > 1 and not made[~mask].any()


# ---- pooled wordings --------------------------------------------------------------------------------------------


def test_pooled_groups_sample_every_wording_and_score_under_the_original(tmp_path):
    other = {"other": lambda r: ["0+" + r["prompt"], "1+" + r["prompt"], "2+" + r["prompt"]]}
    asked = []

    class Listens(Seen):
        def _generate_single_turn(self, prompt_ids, *args, **options):
            asked.extend(self.processing_class.batch_decode(prompt_ids))
            return super()._generate_single_turn(prompt_ids, *args, **options)

    trainer = make(tmp_path, "grpo", None, data=rows(**other), cls=Listens, rephrasings_column="other", max_steps=1)
    trainer.train()
    (rewards, output), tokenizer = trainer.seen[0], trainer.processing_class
    shown = [tokenizer.decode(ids[m.bool()]) for ids, m in zip(output["prompt_ids"], output["prompt_mask"])]
    assert len(asked) == len(shown) == 16
    for start in (0, 8):
        original = shown[start]
        assert shown[start : start + 8] == [original] * 8, "scored under the original"
        assert asked[start : start + 8] == [original] * 2 + [f"{k}+{original}" for k in (0, 0, 1, 1, 2, 2)]
    # TRL shuffles after this, so its buffer is not compared; the advantages are those of the pool
    pooled = rewards[:, 0].view(-1, 8)
    expected = (pooled - pooled.mean(1, keepdim=True)) / (pooled.std(1, keepdim=True) + 1e-4)
    assert_close(output["advantages"], expected.flatten())


def test_wordings_that_are_missing_or_do_not_divide_are_named(tmp_path):
    with pytest.raises(ValueError, match="'other' of the prompt .* is None: expected a list of wordings"):
        make(tmp_path, rephrasings_column="other").train()
    with pytest.raises(ValueError, match="make it a multiple of 3"):
        make(tmp_path, data=rows(other=lambda r: ["0+" + r["prompt"]] * 2), rephrasings_column="other").train()
    uneven = rows(other=lambda r: ["0+" + r["prompt"]] * (1 + 2 * (r["prompt"][0] in "02468")))
    with pytest.raises(ValueError, match="expected a list of wordings, . as in the first row"):
        make(tmp_path, data=uneven, rephrasings_column="other", num_generations=4, shuffle_dataset=False).train()
    with pytest.raises(ValueError, match="cannot be used with tools"):
        config = GRPOConfig(output_dir=str(tmp_path), rephrasings_column="other", **OPTIONS)
        GRPOTrainer(PATH, reward, config, train_dataset=rows(), rollout_func=lambda *a: {})


# ---- refusals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"advantage": "ppo"}, "unknown estimator 'ppo'; known are grpo"),
        ({"advantage": "corpo"}, "needs the least reward of a right response"),
        ({"advantage": "dr_grpo", "scale_rewards": "group"}, "scale_rewards = 'group' contradicts advantage = 'dr_grpo'"),
        ({"advantage": "ep_grpo", "scale_rewards": False}, "scale_rewards = 'none' contradicts advantage = 'ep_grpo'"),
        ({"advantage": "rloo", "advantage_kwargs": {"threshold": 1.0}}, "has no option threshold"),
        ({"advantage": "grpo", "advantage_kwargs": {"eps": 1.0}}, "has no option eps"),
        ({"advantage": "rloo", "multi_objective_aggregation": "normalize_then_sum"}, "is a way to make GRPO's advantage"),
    ],
)  # fmt: skip
def test_settings_that_contradict_the_estimator_are_refused(changes, says, tmp_path):
    with pytest.raises(ValueError, match=says):
        GRPOConfig(output_dir=str(tmp_path), **OPTIONS, **changes)


def test_trl_s_own_config_and_an_untested_version_are_refused(tmp_path):
    with pytest.raises(TypeError, match="take GRPOConfig from grpo_repro.integrations.trl as well"):
        GRPOTrainer(PATH, reward, trl.GRPOConfig(output_dir=str(tmp_path), **OPTIONS), train_dataset=rows())
    for version, says in (("1.15.2", "was tested with TRL 1.16, and this is 1.15.2"), ("2.0", "this is 2.0")):
        code = f"import trl; trl.__version__ = {version!r}; import grpo_repro.integrations.trl"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode and says in done.stderr.splitlines()[-1]


def test_without_a_config_trl_s_defaults_hold_and_options_may_be_json(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    class OnCpu(GRPOConfig):  # TRL's defaults ask for a GPU
        def __init__(self, out):
            super().__init__(out, use_cpu=True, bf16=False, report_to=[])

    monkeypatch.setattr("grpo_repro.integrations.trl.GRPOConfig", OnCpu)
    trainer = GRPOTrainer(PATH, reward, train_dataset=rows(), processing_class=AutoTokenizer.from_pretrained(PATH))
    assert trainer.args.advantage == "grpo" and trainer.args.output_dir == f"{PATH.split('/')[-1]}-GRPO"
    made = GRPOConfig(output_dir=str(tmp_path), advantage="corpo", advantage_kwargs='{"threshold": 0.5}', **OPTIONS)
    assert made.advantage_kwargs == {"threshold": 0.5}


def test_trl_s_script_with_one_import_changed(tmp_path):
    script = """
import sys
from datasets import Dataset
IMPORT

rows = Dataset.from_list([{"prompt": f"{a}+{b}="} for a in range(8) for b in range(8)])

def reward_len(completions, **kwargs):
    return [-abs(8 - len(completion)) for completion in completions]

small = dict(max_steps=2, num_generations=4, per_device_train_batch_size=8, max_completion_length=16, report_to=[], use_cpu=True, bf16=False)
training_args = GRPOConfig(output_dir=sys.argv[2], **small)
trainer = GRPOTrainer(model=sys.argv[1], reward_funcs=reward_len, args=training_args, train_dataset=rows)
trainer.train()
trainer.save_model()
"""
    imports = {"theirs": "from trl import GRPOConfig, GRPOTrainer", "ours": "from grpo_repro.integrations.trl import GRPOConfig, GRPOTrainer"}
    for name, line in imports.items():
        (tmp_path / f"{name}.py").write_text(script.replace("IMPORT", line))
        done = subprocess.run([sys.executable, f"{name}.py", PATH, name], cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-2000:]
    one, two = (AutoModelForCausalLM.from_pretrained(tmp_path / name).state_dict() for name in imports)
    assert all(torch.equal(one[k], two[k]) for k in one)


RANKS = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import torch
from test_trl import Seen, make
if __name__ == "__main__":
    out = Path(sys.argv[2])
    trainer = make(out, "ep_grpo", {"progress_weight": 0.3}, per_device_train_batch_size=6, gradient_accumulation_steps=1, num_generations=4, max_steps=2)
    trainer.train()
    torch.save([(r, {k: o[k] for k in ("advantages", "completion_mask")}) for r, o in trainer.seen], out / f"rank{trainer.accelerator.process_index}.pt")
"""


def test_groups_that_straddle_two_processes(tmp_path):
    "Twelve responses in three groups of four, six in each process: the second group is in both."
    (tmp_path / "ranks.py").write_text(RANKS)
    here = str(Path(__file__).parent)
    argv = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", str(random.randrange(20_000, 40_000))]
    done = subprocess.run([*argv, str(tmp_path / "ranks.py"), here, str(tmp_path)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    ranks = [torch.load(tmp_path / f"rank{i}.pt", weights_only=True) for i in (0, 1)]
    assert len(ranks[0]) == 2
    (r0, o0), (r1, o1) = ranks[0][0], ranks[1][0]
    assert torch.equal(r0, r1) and len(r0) == 12 and len(o0["advantages"]) == len(o1["advantages"]) == 6
    assert o0["advantages"].shape == o0["completion_mask"].shape and o1["advantages"].shape == o1["completion_mask"].shape
    # policy = reference in the first step: the token gates have mean direction A_i, whose sign is the group's own GRPO advantage
    expected = adv.grpo(r0[:, 0], torch.arange(12) // 4)
    for i, row in enumerate([*o0["advantages"], *o1["advantages"]]):
        assert torch.equal(row.sign()[row != 0], expected[i].sign().expand(int((row != 0).sum()))) and (expected[i] == 0) == (not row.any())


def test_the_table_of_completions_shows_these_advantages(tmp_path):
    trainer = make(tmp_path, "static", {"threshold": 0.5}, log_completions=True, max_steps=1)
    trainer.train()
    (file,) = (tmp_path / "out" / "completions").glob("*.parquet")
    table = Dataset.from_parquet(str(file), cache_dir=str(tmp_path / "cache"))
    assert_close(torch.tensor(table["advantage"]).float(), trainer.seen[0][1]["advantages"])
    assert json.dumps(trainer.state.log_history)


def test_trl_s_own_logs_go_through_diagnose_without_options(tmp_path, capsys):
    trainer = make(tmp_path, log_completions=True, num_generations=4)
    trainer.train()
    capsys.readouterr()
    assert main(["diagnose", str(tmp_path / "out" / "completions"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["writer"] == "TRL" and said["responses"] == 32 and said["groups"] == 8 and [t["step"] for t in said["trends"]] == [1, 2]
    shares = [h["groups/zero_variance"] for h in trainer.state.log_history if "groups/zero_variance" in h]
    assert [t["zero_variance_share"] for t in said["trends"]] == shares
