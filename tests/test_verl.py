"Against verl 0.9 itself, in an environment of its own: `make verl-check`."

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.testing import assert_close

pytest.importorskip("verl", reason="verl is not installed: it wants an environment of its own (make verl-check)")

import numpy as np  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402
from verl import DataProto  # noqa: E402
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY  # noqa: E402
from verl.trainer.ppo.ray_trainer import compute_advantage  # noqa: E402

from grpo_repro import advantages as adv  # noqa: E402
from grpo_repro.diagnostics import diagnose  # noqa: E402
from grpo_repro.integrations import verl as ours  # noqa: E402
from grpo_repro.logs import read_logs, trends  # noqa: E402


def batch(seed=0, b=12, t=7):
    "A batch as verl's trainer has it before advantages; rewards at the last token, uids in no order."
    g = torch.Generator().manual_seed(seed)
    mask = (torch.arange(t) < torch.randint(1, t + 1, (b, 1), generator=g)).long()
    scores = torch.zeros(b, t)
    scores[torch.arange(b), mask.sum(1) - 1] = torch.randint(-2, 3, (b,), generator=g).float() / 2
    uid = np.array([f"q{i % 3}" for i in range(b)], dtype=object)
    tensors = {"token_level_scores": scores, "token_level_rewards": scores, "response_mask": mask, "responses": torch.zeros(b, t, dtype=torch.long)}
    return DataProto.from_dict(tensors=tensors, non_tensors={"uid": uid}), mask, scores.sum(1), torch.arange(b) % 3


def tokens(mask, seed=1):
    g = torch.Generator().manual_seed(seed)
    return {name: torch.rand(mask.shape, generator=g) * sign for name, sign in (("entropy", 1), ("logp", -1), ("ref_logp", -1))}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", ["corpo", "static_baseline", "dr_grpo"])
def test_verl_s_own_call_gives_spec_s_numbers(name, seed):
    data, mask, r, groups = batch(seed)
    found = compute_advantage(data, adv_estimator=name, config=OmegaConf.create({"threshold": 0.25})).batch
    mean = torch.stack([r[groups == k].double().mean() for k in range(3)])[groups]
    expected = {"corpo": r - mean.clamp(min=0.25), "static_baseline": r - 0.25, "dr_grpo": r - mean}[name]
    assert_close(found["advantages"].double(), expected.double()[:, None] * mask, atol=1e-6, rtol=0)
    assert torch.equal(found["advantages"], found["returns"])


@pytest.mark.parametrize("seed", range(5))
def test_ep_grpo_through_verl_s_call(seed):
    data, mask, r, groups = batch(seed)
    scored = tokens(mask)
    with ours.token_scores(**scored):
        found = compute_advantage(data, adv_estimator="ep_grpo", config=OmegaConf.create({"progress_weight": 0.4, "gate": 3.0})).batch["advantages"]
    expected = adv.ep_grpo(r, groups, mask=mask.bool(), **scored, progress_weight=0.4, gate=3.0)
    assert_close(found, expected.float())
    assert found.std(1).max() > 0 and not found[~mask.bool()].any()
    with pytest.raises(ValueError, match="trainer.v1.trainer_mode=ep_grpo_sync"):
        compute_advantage(data, adv_estimator="ep_grpo", config=OmegaConf.create({}))


def test_what_is_missing_is_named():
    data, *_ = batch()
    with pytest.raises(ValueError, match=r"give \+algorithm.threshold="):
        compute_advantage(data, adv_estimator="corpo", config=OmegaConf.create({}))
    data.non_tensor_batch.pop("uid")
    with pytest.raises(ValueError, match="no uid"):
        compute_advantage(data, adv_estimator="corpo", config=OmegaConf.create({"threshold": 0.5}))


def test_import_registers_once_and_in_a_fresh_process_by_verl_s_own_variable():
    assert {"corpo", "static_baseline", "dr_grpo", "ep_grpo"} <= set(ADV_ESTIMATOR_REGISTRY)
    ours.register()
    code = "import verl; from verl.trainer.ppo.core_algos import get_adv_estimator_fn as f; from verl.trainer.ppo.v1 import get_trainer_cls as g; "
    code += "print(f('corpo').__name__, g('ep_grpo_sync').__name__)"
    root = str(Path(__file__).parent.parent)
    env = {**os.environ, "VERL_USE_EXTERNAL_MODULES": "grpo_repro.integrations.verl", "PYTHONPATH": root}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "corpo PPOTrainerSyncWithTokenScores" in done.stdout


class Queue:
    "The part of verl's transfer queue that `_compute_advantage` uses: columns by name, in nested form."

    def __init__(self, columns):
        self.columns, self.asked, self.put = columns, [], None

    def kv_batch_get(self, keys, partition_id, select_fields):
        self.asked.append(list(select_fields))
        from tensordict import TensorDict

        return TensorDict({k: self.columns[k] for k in select_fields if k in self.columns}, batch_size=[len(keys)])

    def kv_batch_put(self, keys, partition_id, fields):
        self.put = fields
        return SimpleNamespace(keys=keys, partition_id=partition_id)


def test_the_trainer_class_hands_the_tokens_to_the_estimator(monkeypatch):
    from verl.trainer.ppo.v1 import get_trainer_cls, trainer_base

    data, mask, r, groups = batch(4)
    scored = tokens(mask)
    lengths = mask.sum(1).tolist()
    nested = lambda x: torch.nested.as_nested_tensor([x[i, :n] for i, n in enumerate(lengths)], layout=torch.jagged)
    columns = {
        "uid": data.non_tensor_batch["uid"],
        "response_mask": nested(mask),
        "rm_scores": nested(data.batch["token_level_rewards"]),
        "entropy": nested(scored["entropy"]),
        "old_log_probs": nested(scored["logp"]),
        "ref_log_prob": nested(scored["ref_logp"]),
    }
    try:
        from tensordict.tensorclass import NonTensorData, NonTensorStack

        columns["uid"] = NonTensorStack(*[NonTensorData(u) for u in columns["uid"]])
    except ImportError:
        pytest.skip("this tensordict has no stack of plain values")
    queue = Queue(columns)
    monkeypatch.setattr(trainer_base, "tq", queue)
    monkeypatch.setitem(sys.modules, "transfer_queue", queue)
    cls = get_trainer_cls("ep_grpo_sync")
    algorithm = {"adv_estimator": "ep_grpo", "use_kl_in_reward": False, "gamma": 1.0, "lam": 1.0, "progress_weight": 0.3}
    config = OmegaConf.create({"algorithm": algorithm, "actor_rollout_ref": {"rollout": {"n": 4}}})
    trainer = SimpleNamespace(config=config, use_reference_policy=True)

    class Batch(SimpleNamespace):
        def __len__(self):
            return len(self.keys)

    asked = Batch(keys=[f"{u}_0_0" for u in data.non_tensor_batch["uid"]], partition_id="train")
    bound = object.__new__(cls)
    bound.__dict__.update(vars(trainer))
    cls._compute_advantage(bound, asked, {})
    assert ["response_mask", "entropy", "old_log_probs", "ref_log_prob"] in queue.asked and not ours._TOKENS
    expected = adv.ep_grpo(r, groups, mask=mask.bool(), **scored, progress_weight=0.3)
    for i, n in enumerate(lengths):
        assert_close(queue.put["advantages"][i], expected[i, :n].float())
    bound.use_reference_policy = False
    with pytest.raises(ValueError, match="actor.use_kl_loss=True"):
        cls._compute_advantage(bound, asked, {})


def test_verl_s_dump_goes_through_diagnose_without_options(tmp_path):
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    for step in (1, 2, 11):
        inputs = [f"question {i // 4}" for i in range(12)]
        scores = [float(i % 4 == 0 and i < 8 * (step < 11)) for i in range(12)]
        PPOTrainer._write_generations(inputs, ["some words"] * 12, ["5"] * 12, scores, {"acc": np.array(scores)}, str(tmp_path), step)
    log = read_logs([tmp_path])
    assert log["layout"].writer == "verl" and len(log["rewards"]) == 36 and int(log["groups"].max()) == 8
    d = diagnose(log["rewards"], log["groups"], lengths=log["lengths"])
    assert d["zero_variance_groups"] == 5 and [t["zero_variance_share"] for t in trends(log)] == [1 / 3, 1 / 3, 1.0]
