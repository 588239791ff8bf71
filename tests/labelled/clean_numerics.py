"""Clean numerical code: solvers, clustering, sampling, function transforms, sparse and compiled."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from labelled.clean import Clean
from torch import nn

EXAMPLES = Clean()


@EXAMPLES.clean
def power_iteration():
    a = torch.randn(32, 32)

    def iterate():
        x = torch.ones(32)
        for _ in range(20):
            x = a @ x
            x = x / x.norm()
        return x

    return iterate


@EXAMPLES.clean
def clusters():
    points = torch.randn(200, 2)

    def fit():
        centres = points[:5]
        for _ in range(12):
            nearest = torch.cdist(points, centres).argmin(1)
            sums = torch.zeros(5, 2).index_add_(0, nearest, points)
            centres = sums / torch.bincount(nearest, minlength=5).clamp(min=1)[:, None]
        return centres

    return fit


@EXAMPLES.clean
def runge_kutta():
    field = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
    start = torch.randn(8, 2)

    @torch.no_grad()
    def integrate():
        x, h = start, 0.1
        for _ in range(12):
            k1 = field(x)
            k2 = field(x + h / 2 * k1)
            k3 = field(x + h / 2 * k2)
            k4 = field(x + h * k3)
            x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return x

    return integrate


@EXAMPLES.clean
def trained_differential_equation():
    field = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(field.parameters(), foreach=True)
    start, end = torch.randn(8, 2), torch.randn(8, 2)

    def step():
        x = start
        for _ in range(12):
            x = x + 0.1 * field(x)
        optimizer.zero_grad()
        F.mse_loss(x, end).backward()
        optimizer.step()

    return step


@EXAMPLES.clean
def heat_on_a_grid():
    kernel = torch.tensor([[0.0, 1.0, 0.0], [1.0, -4.0, 1.0], [0.0, 1.0, 0.0]])[None, None]
    start = torch.rand(1, 1, 32, 32)

    def simulate():
        heat = start
        for _ in range(15):
            heat = heat + 0.1 * F.conv2d(heat, kernel, padding=1)
        return heat

    return simulate


@EXAMPLES.clean
def gradient_descent_by_hand():
    weight = torch.zeros(8, 1, requires_grad=True)
    inputs, labels = torch.randn(64, 8), torch.randn(64, 1)

    def fit():
        for _ in range(12):
            loss = F.mse_loss(inputs @ weight, labels)
            (grad,) = torch.autograd.grad(loss, weight)
            with torch.no_grad():
                weight.sub_(grad, alpha=0.1)

    return fit


@EXAMPLES.clean
def gradients_of_each_sample():
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    inputs, labels = torch.randn(16, 8), torch.randn(16, 1)

    def loss(parameters, x, y):
        return F.mse_loss(torch.func.functional_call(model, parameters, (x,)), y)

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))
    return lambda: each(parameters, inputs, labels)


@EXAMPLES.clean
def derivatives_of_a_function():
    x = torch.randn(6)

    def rosenbrock(x):
        return (100 * (x[1:] - x[:-1].square()).square() + (1 - x[:-1]).square()).sum()

    return lambda: (torch.func.hessian(rosenbrock)(x), torch.func.grad(rosenbrock)(x))


@EXAMPLES.clean
def samples_of_distributions():
    normal = torch.distributions.MultivariateNormal(torch.zeros(3), torch.eye(3))
    gamma = torch.distributions.Gamma(torch.ones(4), torch.ones(4))

    def draw():
        x = normal.sample((100,))
        return normal.log_prob(x).mean(), gamma.rsample((50,)).mean(0), normal.entropy()

    return draw


@EXAMPLES.clean
def fitted_posterior():
    mean, scale = nn.Parameter(torch.zeros(4)), nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.Adam([mean, scale], lr=0.05, foreach=True)
    prior, data = torch.distributions.Normal(torch.zeros(4), 1.0), torch.randn(32, 4)

    def step():
        guide = torch.distributions.Normal(mean, F.softplus(scale))
        z = guide.rsample()
        evidence = torch.distributions.Normal(z, 1.0).log_prob(data).sum()
        loss = torch.distributions.kl_divergence(guide, prior).sum() - evidence
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


@EXAMPLES.clean
def markov_chain_by_langevin():
    precision = torch.eye(4)

    def sample():
        x, kept = torch.zeros(16, 4), []
        for _ in range(12):
            x = x - 0.05 * x @ precision + 0.3 * torch.randn(16, 4)
            kept.append(x)
        return torch.stack(kept).mean(0)

    return sample


@EXAMPLES.clean
def linear_algebra():
    a, b = torch.randn(16, 16), torch.randn(16, 4)

    def solve():
        q, r = torch.linalg.qr(a)
        x = torch.linalg.solve_triangular(r, q.T @ b, upper=True)
        return x, torch.linalg.eigvalsh(a @ a.T), torch.linalg.svdvals(a), torch.linalg.det(a)

    return solve


@EXAMPLES.clean
def sparse_product():
    indices = torch.randint(64, (2, 200))
    graph = torch.sparse_coo_tensor(indices, torch.rand(200), (64, 64)).coalesce()
    layer, features = nn.Linear(16, 16), torch.randn(64, 16)

    @torch.no_grad()
    def spread():
        x = features
        for _ in range(3):
            x = F.relu(torch.sparse.mm(graph, layer(x)))
        return x

    return spread


@EXAMPLES.clean
def clicks_from_bags():
    tables = nn.ModuleList(nn.EmbeddingBag(100, 8, mode="sum") for _ in range(4))
    bottom, top = nn.Linear(13, 8), nn.Linear(40, 1)
    modules = nn.ModuleList([*tables, bottom, top])
    optimizer = torch.optim.Adagrad(modules.parameters(), lr=0.01, foreach=True)
    dense, ids = torch.randn(16, 13), torch.randint(100, (4, 16, 5))
    clicked = torch.rand(16, 1).round()

    def step():
        bags = [table(chosen) for table, chosen in zip(tables, ids, strict=True)]
        features = torch.cat([bottom(dense), *bags], dim=1)
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(top(features), clicked).backward()
        optimizer.step()

    return step


@EXAMPLES.clean
def messages_on_a_graph():
    first, second = nn.Linear(8, 16), nn.Linear(16, 4)
    optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()], foreach=True)
    source, target = torch.randint(50, (2, 300))
    nodes, labels = torch.randn(50, 8), torch.randint(4, (50,))
    degree = torch.bincount(target, minlength=50).clamp(min=1)[:, None]

    def spread(x):
        return torch.zeros_like(x).index_add_(0, target, x[source]) / degree

    def step():
        optimizer.zero_grad()
        hidden = F.relu(first(spread(nodes)))
        F.cross_entropy(second(spread(hidden)), labels).backward()
        optimizer.step()

    return step


@EXAMPLES.clean
def compiled_training_step():
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    forward = torch.compile(model, backend="eager")
    inputs, labels = torch.randn(16, 8), torch.randint(4, (16,))

    def step():
        optimizer.zero_grad()
        F.cross_entropy(forward(inputs), labels).backward()
        optimizer.step()

    return step


@EXAMPLES.clean
def statistics_of_a_table():
    table = torch.randn(500, 8, dtype=torch.float64)

    def describe():
        centred = table - table.mean(0)
        covariance = centred.T @ centred / 499
        quantiles = table.quantile(torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64), dim=0)
        return covariance, quantiles, table.std(0), centred.square().mean(0).sqrt().tolist()

    return describe


@EXAMPLES.clean
def windows_over_a_series():
    series = torch.randn(200)

    def smooth():
        windows = series.unfold(0, 10, 1)
        return windows.mean(1), windows.amax(1), series.cumsum(0), series.diff()

    return smooth
