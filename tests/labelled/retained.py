"""Labelled examples of the rule about graphs that are walked twice."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from labelled.case import Examples
from torch import nn

EXAMPLES = Examples()


def _trunk():
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh())


class TwoHeads(nn.Module):
    """A trunk with a classifier and a regressor."""

    def __init__(self):
        super().__init__()
        self.trunk, self.classify, self.regress = _trunk(), nn.Linear(8, 3), nn.Linear(8, 1)

    def forward(self, x):
        features = self.trunk(x)
        return self.classify(features), self.regress(features)


# -------------------------------------------------------------------------------------- positives


@EXAMPLES.positive("backward-twice", 1)
def heads_of_one_trunk_backward_one_by_one():
    model, x = TwoHeads(), torch.randn(4, 8)
    labels, values = torch.randint(3, (4,)), torch.randn(4, 1)

    def training_step():
        model.zero_grad()
        logits, prediction = model(x)
        F.cross_entropy(logits, labels).backward(retain_graph=True)
        F.mse_loss(prediction, values).backward()  # <- here

    return training_step


@EXAMPLES.positive("backward-twice", 4)
def a_trainer_that_calls_backward_for_each_loss():
    class Trainer:
        def __init__(self):
            self.model = TwoHeads()
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

        def backward(self, loss, *, last=False):
            loss.backward(retain_graph=not last)

        def step(self, x):
            self.optimizer.zero_grad()
            logits, prediction = self.model(x)
            self.backward(logits.logsumexp(-1).mean())
            self.backward(prediction.square().mean())  # <- here
            self.backward(logits.square().mean(), last=True)  # <- here
            self.optimizer.step()

    trainer = Trainer()
    return lambda: [trainer.step(x) for x in torch.randn(2, 4, 8)]


@EXAMPLES.positive("backward-twice", 2)
def losses_in_a_dictionary_one_after_the_other():
    model, x = TwoHeads(), torch.randn(4, 8)

    def losses():
        logits, prediction = model(x)
        yield "class", logits.logsumexp(-1).mean()
        yield "value", prediction.square().mean()
        yield "agreement", (logits.mean(-1) - prediction[:, 0]).square().mean()

    def training_step():
        model.zero_grad()
        for _, loss in losses():
            loss.backward(retain_graph=True)  # <- here

    return training_step


@EXAMPLES.positive("backward-twice", 2)
def outputs_of_every_stage_have_a_loss():
    stages = nn.ModuleList(
        nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)) for _ in range(3)
    )
    x, target = torch.randn(4, 8), torch.randn(4, 8)

    def supervise():
        stages.zero_grad()
        h = x
        for stage in stages:
            h = stage(h)
            F.l1_loss(h, target).backward(retain_graph=stage is not stages[-1])  # <- here

    return supervise


@EXAMPLES.positive("backward-twice", 1)
def actor_and_critic_share_their_encoder():
    encoder, actor, critic = _trunk(), nn.Linear(8, 2), nn.Linear(8, 1)
    parameters = [*encoder.parameters(), *actor.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(parameters, fused=True)
    states, actions, returns = torch.randn(6, 8), torch.randint(2, (6,)), torch.randn(6)

    def update():
        optimizer.zero_grad()
        h = encoder(states)
        value = critic(h).squeeze(-1)
        log_probability = actor(h).log_softmax(-1).gather(1, actions[:, None]).squeeze(1)
        policy_loss = -(log_probability * (returns - value.detach())).mean()
        value_loss = F.smooth_l1_loss(value, returns)
        policy_loss.backward(retain_graph=True)
        value_loss.backward()  # <- here
        optimizer.step()

    return update


@EXAMPLES.positive("backward-twice", 1)
def regularizer_has_a_backward_of_its_own():
    encoder, decoder, x = _trunk(), nn.Linear(8, 8), torch.randn(4, 8)

    def step():
        encoder.zero_grad()
        decoder.zero_grad()
        latent = encoder(x)
        F.mse_loss(decoder(latent), x).backward(retain_graph=True)
        (0.1 * latent.abs().mean()).backward()  # <- here

    return step


@EXAMPLES.positive("backward-twice", 3)
def per_sample_losses_of_one_batch():
    model, x = _trunk(), torch.randn(4, 8)

    def step():
        model.zero_grad()
        losses = model(x).square().mean(1)
        for loss in losses:
            loss.backward(retain_graph=True)  # <- here

    return step


@EXAMPLES.positive("backward-twice", 1)
def two_terms_through_torch_autograd_backward():
    model, x = TwoHeads(), torch.randn(4, 8)

    def step():
        model.zero_grad()
        logits, prediction = model(x)
        torch.autograd.backward(logits.sum(), retain_graph=True)
        torch.autograd.backward(prediction.sum())  # <- here

    return step


@EXAMPLES.positive("backward-twice", 1, nodes=3)
def three_shared_nodes_count_where_the_threshold_says_so():
    layer, x = nn.Linear(8, 8), torch.randn(4, 8)

    def step():
        layer.zero_grad()
        h = layer(x).relu()
        h.sum().backward(retain_graph=True)
        h.mean().backward()  # <- here

    return step


# ------------------------------------------------------------------------------------- near misses


@EXAMPLES.near_miss("backward-twice")
def three_shared_nodes_are_few():
    return three_shared_nodes_count_where_the_threshold_says_so()


@EXAMPLES.near_miss("backward-twice")
def losses_are_added_first():
    model, x = TwoHeads(), torch.randn(4, 8)

    def step():
        model.zero_grad()
        logits, prediction = model(x)
        (logits.square().mean() + prediction.square().mean()).backward()

    return step


@EXAMPLES.near_miss("backward-twice")
def micro_batches_have_graphs_of_their_own():
    model = _trunk()
    batches = [torch.randn(2, 8) for _ in range(4)]

    def step():
        model.zero_grad()
        for batch in batches:
            (model(batch).square().mean() / len(batches)).backward()

    return step


@EXAMPLES.near_miss("backward-twice")
def generator_and_critic_step_in_turn():
    generator, critic = _trunk(), _trunk()
    opt_g = torch.optim.SGD(generator.parameters(), lr=0.01, fused=True)
    opt_d = torch.optim.SGD(critic.parameters(), lr=0.01, fused=True)

    def step():
        fake = generator(torch.randn(4, 8))
        opt_d.zero_grad()
        critic(fake).mean().backward(retain_graph=True)
        opt_d.step()
        opt_g.zero_grad()
        (-critic(fake).mean()).backward()
        opt_g.step()

    return step


@EXAMPLES.near_miss("backward-twice")
def gradient_penalty_goes_through_the_critic_again():
    critic = _trunk()

    def step():
        critic.zero_grad()
        x = torch.randn(4, 8, requires_grad=True)
        scores = critic(x).sum()
        (slope,) = torch.autograd.grad(scores, x, create_graph=True)
        (scores + slope.norm()).backward()

    return step


@EXAMPLES.near_miss("backward-twice")
def gradients_of_each_loss_are_kept_apart():
    model, x = TwoHeads(), torch.randn(4, 8)
    shared = list(model.trunk.parameters())

    def conflict():
        model.zero_grad()
        logits, prediction = model(x)
        kept = []
        for loss in (logits.square().mean(), prediction.square().mean()):
            loss.backward(retain_graph=True)
            kept.append(torch.cat([p.grad.flatten() for p in shared]))
        return F.cosine_similarity(*kept, dim=0)

    return conflict


@EXAMPLES.near_miss("backward-twice")
def norm_of_the_first_loss_is_logged_between():
    model, x = TwoHeads(), torch.randn(4, 8)

    def step():
        model.zero_grad()
        logits, prediction = model(x)
        logits.square().mean().backward(retain_graph=True)
        norm = model.trunk[0].weight.grad.norm()
        prediction.square().mean().backward()
        return norm

    return step


@EXAMPLES.near_miss("backward-twice")
def rows_of_a_jacobian():
    model = _trunk()

    def jacobian():
        x = torch.randn(8, requires_grad=True)
        y = model(x)
        return [torch.autograd.grad(one, x, retain_graph=True)[0] for one in y.unbind()]

    return jacobian


@EXAMPLES.near_miss("backward-twice")
def saliency_of_each_class_is_read_and_reset():
    model, x = _trunk(), torch.randn(4, 8, requires_grad=True)

    def saliency():
        maps = []
        logits = model(x)
        for index in range(3):
            x.grad = None
            logits[:, index].sum().backward(retain_graph=True)
            maps.append(x.grad.abs().amax(1))
        return maps

    return saliency


@EXAMPLES.near_miss("backward-twice")
def two_models_have_two_graphs():
    student, teacher, x = _trunk(), _trunk(), torch.randn(4, 8)

    def step():
        student.zero_grad()
        teacher.zero_grad()
        student(x).square().mean().backward()
        teacher(x).square().mean().backward()

    return step


@EXAMPLES.positive("backward-twice", 1)
def four_nodes_are_shared():
    layer, x = nn.Linear(8, 8), torch.randn(4, 8)

    def step():
        layer.zero_grad()
        h = layer(x).relu().tanh()
        h.sum().backward(retain_graph=True)
        h.mean().backward()  # <- here

    return step


@EXAMPLES.near_miss("backward-twice")
def each_loss_has_parameters_of_its_own():
    encoder, decoder, x = _trunk(), _trunk(), torch.randn(4, 8)

    def step():
        encoder.zero_grad()
        decoder.zero_grad()
        decoder(encoder(x + 1)).mean().backward()
        out = decoder(encoder(x))
        out.square().mean().backward(inputs=list(encoder.parameters()), retain_graph=True)
        out.abs().mean().backward(inputs=list(decoder.parameters()))

    return step


@EXAMPLES.near_miss("backward-twice")
def hook_keeps_the_gradient_of_an_activation_for_each_class():
    features, head, x = _trunk(), nn.Linear(8, 3), torch.randn(4, 8)

    def cams():
        kept = []
        activation = features(x)
        activation.register_hook(lambda grad: kept.append(grad.clone()))
        logits = head(activation.tanh().exp().sin())
        for label in range(3):
            logits.narrow(1, label, 1).sum().backward(retain_graph=True)
        return kept

    return cams


@EXAMPLES.near_miss("backward-twice")
def retained_gradient_of_an_activation_is_read_for_each_class():
    features, head, x = _trunk(), nn.Linear(8, 3), torch.randn(4, 8)

    def cams():
        kept = []
        activation = features(x)
        activation.retain_grad()
        logits = head(activation.tanh().exp().sin())
        for label in range(3):
            logits.narrow(1, label, 1).sum().backward(retain_graph=True)
            kept.append(activation.grad.mean(0))
        return kept

    return cams
