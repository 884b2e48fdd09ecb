"""`replicaGrouping` on real instances: each group trains as a job of its own would, in plain torch.

The groups reach over instances. Every replica has data of its own.
"""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call

import popdist
import popdist.poptorch
import popdist_torch as poptorch
from popdist_torch import CommGroupType, VariableRetrievalMode
from popdist_torch.errors import AgreementError
from tests.distributed.jobs import run_job

REPLICAS = 4
CALLS, STEPS, ROWS = 3, 2, 3
GROUPS = {
    "no grouping": (CommGroupType.NoGrouping, 0, [0, 1, 2, 3]),
    "consecutive": (CommGroupType.Consecutive, 2, [0, 0, 1, 1]),
    "orthogonal": (CommGroupType.Orthogonal, 2, [0, 1, 0, 1]),
    "all": (CommGroupType.All, 0, [0, 0, 0, 0]),
}
CASES = {
    **{name: {"groups": name} for name in GROUPS},
    "shared layer": {"groups": "orthogonal", "shared": ["last"]},
    "frozen layer": {"groups": "no grouping", "frozen": ["first"]},
    "sum": {"groups": "orthogonal", "reduction": "Sum"},
    "running mean": {"groups": "orthogonal", "running": True},
    "in one order": {"groups": "orthogonal", "shared": ["last"], "invariant": True},
    "compiled": {"groups": "orthogonal", "compiled": True},
    "each replica": {"groups": "orthogonal", "each": True},
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, x, y):
        scores = self.last(torch.tanh(self.first(x)))
        return scores, nn.functional.cross_entropy(scores, y)


def members():
    """Four nets with different weights."""
    torch.manual_seed(1)
    return [Net().double() for _ in range(REPLICAS)]


def batches():
    """Inputs [call, step, replica, row, 5] and labels: different everywhere."""
    generator = torch.Generator().manual_seed(2)
    shape = (CALLS, STEPS, REPLICAS, ROWS)
    x = torch.randn(*shape, 5, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, 3, shape, generator=generator)


def stacked(case):
    """A net whose weights are the versions of all groups, or one where they are shared."""
    group_of = GROUPS[case["groups"]][2]
    nets, net = members()[: max(group_of) + 1], Net().double()
    for name, parameter in net.named_parameters():
        versions = [dict(one.named_parameters())[name].data for one in nets]
        alone = len(nets) == 1 or name.split(".")[0] in case.get("shared", [])
        parameter.data = versions[0].clone() if alone else torch.stack(versions)
        parameter.requires_grad_(name.split(".")[0] not in case.get("frozen", []))
    return net


def group(training, case):
    kind, shards, _ = GROUPS[case["groups"]]
    each = case.get("each", False)
    mode = VariableRetrievalMode.AllReplicas if each else VariableRetrievalMode.OnePerGroup
    for name in {"first", "last"} - {*case.get("shared", [])}:
        for parameter in (getattr(training, name).weight, getattr(training, name).bias):
            parameter.replicaGrouping(kind, shards, mode)


def prepared(case):
    here = popdist.topology()
    options = popdist.poptorch.Options().outputMode(poptorch.OutputMode.All)
    options.Training.gradientAccumulation(STEPS)
    if "reduction" in case:
        kind = poptorch.ReductionType[case["reduction"]]
        options.Training.accumulationAndReplicationReductionType(kind)
    if case.get("running"):
        options.Training.setMeanAccumulationAndReplicationReductionStrategy(
            poptorch.MeanReductionStrategy.Running
        )
    if case.get("compiled"):
        options.Jit.torchCompile(backend="aot_eager")
    net = stacked(case)
    training = poptorch.trainingModel(
        net,
        options,
        torch.optim.AdamW(net.parameters(), lr=0.05, weight_decay=0.1),
        placement_invariant=case.get("invariant", False),
    )
    group(training, case)
    mine = slice(here.replica_index_offset, here.replica_index_offset + here.num_local_replicas)
    x, y = batches()
    return training, x[:, :, mine].flatten(1, 3), y[:, :, mine].flatten(1, 3)


def values(net):
    return {name: p.detach().numpy().copy() for name, p in net.state_dict().items()}


def train(path):
    answer = {}
    for name, case in CASES.items():
        training, x, y = prepared(case)
        losses = [training(x[call], y[call])[1] for call in range(CALLS)]
        answer[f"{name}/loss"] = torch.stack(losses).numpy()
        answer |= {f"{name}/{key}": value for key, value in values(training.model).items()}
        if name == "shared layer":
            forward = popdist.poptorch.Options().deviceIterations(STEPS)
            inference = poptorch.inferenceModel(training.model, forward)
            answer["inference"] = inference(x[0], y[0])[1].numpy()
        training.destroy()
    # A checkpoint in the middle.
    training, x, y = prepared(CASES["shared layer"])
    training(x[0], y[0])
    poptorch.Checkpoint(path, model=training).save()
    training.destroy()
    training, _, _ = prepared(CASES["shared layer"])
    poptorch.Checkpoint(path, model=training).load()
    for call in range(1, CALLS):
        training(x[call], y[call])
    answer |= {f"resumed/{key}": value for key, value in values(training.model).items()}
    # Changes on one instance alone.
    with torch.no_grad():
        training.model.first.weight[popdist.getInstanceIndex()] += 1 - popdist.getInstanceIndex()
    training.copyWeightsToDevice()
    with pytest.raises(AgreementError) as parted:
        training(x[0], y[0])
    training, x, y = prepared(CASES["consecutive"])
    if popdist.getInstanceIndex() == 0:
        group(training, CASES["orthogonal"])
    with pytest.raises(AgreementError) as other_groups:
        training(x[0], y[0])
    return answer | {"parted": str(parted.value), "other groups": str(other_groups.value)}


def infer():
    """Inference alone, before any training."""
    net = stacked(CASES["orthogonal"])
    model = poptorch.inferenceModel(net, popdist.poptorch.Options())
    group(model, CASES["orthogonal"])
    here = popdist.topology()
    x, y = batches()
    mine = slice(here.replica_index_offset, here.replica_index_offset + here.num_local_replicas)
    scores, _ = model(x[0, 0, mine].flatten(0, 1), y[0, 0, mine].flatten(0, 1))
    return {"scores": scores.numpy(), "class": type(net.first.weight).__name__}


def in_one_process(case):
    """The same in plain torch: all versions in one optimizer, gradients by autograd alone."""
    group_of = GROUPS[case["groups"]][2]
    net = stacked(case)
    trained = {name: p for name, p in net.named_parameters() if p.requires_grad}
    versions = {name: p for name, p in net.named_parameters() if p.dim() > _dims(name)}
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.05, weight_decay=0.1)
    x, y = batches()
    losses, template = [], Net().double()
    for call in range(CALLS):
        optimizer.zero_grad()
        for step in range(STEPS):
            for replica in range(REPLICAS):
                own = {
                    name: p[group_of[replica]] if name in versions else p
                    for name, p in net.named_parameters()
                }
                pair = (x[call, step, replica], y[call, step, replica])
                _, loss = functional_call(template, own, pair)
                loss.backward()
                losses.append(loss.item())
        for p in trained.values():
            if case.get("reduction") != "Sum":
                p.grad /= STEPS * REPLICAS
        optimizer.step()
    losses = np.array(losses).reshape(CALLS, STEPS, REPLICAS)
    found = values(net)
    if case.get("each"):
        found = {name: value[group_of] for name, value in found.items()}
    return losses, found


def _dims(name):
    return 2 if name.endswith("weight") else 1


def as_jobs_of_their_own(case):
    """Each group as a model of its own with an optimizer of its own, on the data of the group."""
    group_of = GROUPS[case["groups"]][2]
    x, y = batches()
    nets = copy.deepcopy(members()[: max(group_of) + 1])
    for index, net in enumerate(nets):
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.05, weight_decay=0.1)
        mine = [replica for replica, group in enumerate(group_of) if group == index]
        for call in range(CALLS):
            optimizer.zero_grad()
            # Equal parts: the mean over all rows of the group is the mean of the means.
            loss = net(x[call][:, mine].flatten(0, 2), y[call][:, mine].flatten(0, 2))[1]
            (loss * len(mine) / REPLICAS).backward()
            optimizer.step()
    states = [values(net) for net in nets]
    if len(nets) == 1:
        return states[0]
    return {name: np.stack([state[name] for state in states]) for name in states[0]}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("groups") / "run.pt")
    return run_job(train, instances=2, replicas=REPLICAS, path=path)


@pytest.mark.parametrize("name", CASES)
def test_groups_train_as_in_one_process(ranks, name):
    losses, expected = in_one_process(CASES[name])
    for rank, answer in enumerate(ranks):
        own = answer[f"{name}/loss"].reshape(CALLS, STEPS, REPLICAS // 2)
        np.testing.assert_allclose(own, losses[:, :, 2 * rank : 2 * rank + 2], atol=1e-13)
        for key, value in expected.items():
            np.testing.assert_allclose(answer[f"{name}/{key}"], value, atol=1e-13, err_msg=key)


@pytest.mark.parametrize("name", GROUPS)
def test_each_group_trains_as_a_job_of_its_own(ranks, name):
    for key, value in as_jobs_of_their_own(CASES[name]).items():
        for answer in ranks:
            np.testing.assert_allclose(answer[f"{name}/{key}"], value, atol=1e-13, err_msg=key)


def test_a_resumed_run_goes_on_with_all_versions(ranks):
    for answer in ranks:
        for key in ("first.weight", "last.weight"):
            np.testing.assert_array_equal(answer[f"resumed/{key}"], answer[f"shared layer/{key}"])


def test_inference_runs_the_versions_of_the_groups(ranks):
    case = CASES["shared layer"]
    _, trained = in_one_process(case)
    x, y = batches()
    for rank, answer in enumerate(ranks):
        seen = answer["inference"].reshape(STEPS, 2)
        for local in range(2):
            replica = 2 * rank + local
            group_of = GROUPS[case["groups"]][2][replica]
            own = {k: torch.tensor(v[group_of] if "first" in k else v) for k, v in trained.items()}
            for step in range(STEPS):
                pair = (x[0, step, replica], y[0, step, replica])
                _, loss = functional_call(Net().double(), own, pair)
                np.testing.assert_allclose(seen[step, local], loss.item(), atol=1e-13)


def test_inference_alone():
    x, y = batches()
    nets = members()
    for rank, answer in enumerate(run_job(infer, instances=2, replicas=REPLICAS)):
        for local in range(2):
            replica = 2 * rank + local
            net = nets[GROUPS["orthogonal"][2][replica]]
            expected = net(x[0, 0, replica], y[0, 0, replica])[0].detach()
            rows = answer["scores"][local * ROWS : (local + 1) * ROWS]
            np.testing.assert_allclose(rows, expected, atol=1e-13)
        assert answer["class"] == "Parameter"


def test_instances_that_differ_in_versions_or_groups_are_refused(ranks):
    for answer in ranks:
        assert "PD311" in answer["parted"]
        assert "groups of parameter 0" in answer["other groups"]
