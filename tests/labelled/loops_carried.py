"""Labelled examples of for-loop-indexing, most of them near misses: what the next one needs."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from labelled.case import Examples
from torch import nn

EXAMPLES = Examples()


# ------------------------------------------------------------------------ reinforcement learning


@EXAMPLES.near_miss("for-loop-indexing")
def advantages_from_the_end():
    class Rollout:
        def __init__(self):
            self.rewards, self.values = torch.rand(16, 3), torch.rand(17, 3)
            self.dones = torch.zeros(16, 3)
            self.advantages = torch.zeros(16, 3)

        def compute(self, gamma=0.99, decay=0.95):
            last = torch.zeros(3)
            for t in reversed(range(16)):
                alive = 1.0 - self.dones[t]
                delta = self.rewards[t] + gamma * self.values[t + 1] * alive - self.values[t]
                last = delta + gamma * decay * alive * last
                self.advantages[t] = last

    rollout = Rollout()
    return rollout.compute


@EXAMPLES.near_miss("for-loop-indexing")
def discounted_returns():
    rewards = torch.rand(20)

    def returns():
        total, out = torch.zeros(()), []
        for reward in rewards.flip(0):
            total = reward + 0.9 * total
            out.append(total)
        return torch.stack(out[::-1])

    return returns


@EXAMPLES.near_miss("for-loop-indexing")
def a_policy_that_is_rolled_out():
    policy, noise = nn.Linear(3, 3), torch.rand(12, 2, 3)

    @torch.no_grad()
    def rollout():
        observation, seen = torch.zeros(2, 3), []
        for t in range(12):
            action = policy(observation).tanh()
            observation = observation + 0.1 * action + 0.01 * noise[t]
            seen.append(observation)
        return torch.stack(seen)

    return rollout


# -------------------------------------------------------------------------- dynamic programming


@EXAMPLES.near_miss("for-loop-indexing")
def best_scores_of_a_lattice():
    emissions, transitions = torch.rand(14, 5), torch.rand(5, 5)

    def forward():
        score, back = emissions[0], []
        for t in range(1, 14):
            best = (score[:, None] + transitions).max(0)
            score = best.values + emissions[t]
            back.append(best.indices)
        return score

    return forward


@EXAMPLES.near_miss("for-loop-indexing")
def the_best_path_read_backwards():
    back = torch.stack([torch.randperm(5) for _ in range(16)])

    def path():
        best, out = 0, []
        for t in reversed(range(16)):
            best = int(back[t, best])
            out.append(best)
        return out

    return path


@EXAMPLES.near_miss("for-loop-indexing")
def the_best_path_of_a_batch():
    back, last = torch.randint(5, (16, 3, 5)), torch.zeros(3, 1, dtype=torch.long)

    def path():
        best, out = last, []
        for pointers in back.flip(0):
            best = pointers.gather(1, best)
            out.append(best)
        return torch.cat(out, 1)

    return path


@EXAMPLES.near_miss("for-loop-indexing")
def distance_of_two_texts():
    a, b = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8], [2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4, 5]

    def distance():
        table = torch.zeros(13, 13)
        for i in range(12):
            for j in range(12):
                cost = 1.0 - (a[i] == b[j])
                above = torch.minimum(table[i, j + 1], table[i + 1, j]) + 1
                table[i + 1, j + 1] = torch.minimum(above, table[i, j] + cost)
        return table[-1, -1]

    return distance


@EXAMPLES.near_miss("for-loop-indexing")
def alignments_of_a_table_in_place():
    log_probabilities = torch.rand(14, 6).log()

    def forward():
        alpha = torch.full((14, 6), -20.0)
        alpha[0] = log_probabilities[0]
        for t in range(1, 14):
            stay = alpha[t - 1]
            move = F.pad(stay[:-1], (1, 0), value=-20.0)
            alpha[t] = torch.logaddexp(stay, move) + log_probabilities[t]
        return alpha[-1]

    return forward


@EXAMPLES.near_miss("for-loop-indexing")
def beams_over_the_steps_of_an_encoder():
    log_probabilities = torch.rand(14, 8).log_softmax(-1)

    def search():
        scores = torch.zeros(4)
        for step in log_probabilities:
            scores = (scores[:, None] + step).flatten().topk(4).values
        return scores

    return search


# ---------------------------------------------------------------------------------- integration


@EXAMPLES.near_miss("for-loop-indexing")
def euler_with_a_driving_force():
    force = torch.rand(20, 3)

    def integrate():
        x = torch.zeros(3)
        for t in range(20):
            x = x + 0.1 * (force[t] - x)
        return x

    return integrate


@EXAMPLES.near_miss("for-loop-indexing")
def runge_kutta_over_a_grid_of_times():
    times = torch.linspace(0, 1, 14)

    def field(t, x):
        return torch.sin(t) * x

    def integrate():
        x = torch.ones(4)
        for i in range(13):
            t, h = times[i], times[i + 1] - times[i]
            k1 = field(t, x)
            k2 = field(t + h / 2, x + h / 2 * k1)
            x = x + h * k2
        return x

    return integrate


@EXAMPLES.near_miss("for-loop-indexing")
def gauss_and_seidel():
    a, b = torch.rand(12, 12) + 12 * torch.eye(12), torch.rand(12)

    def solve():
        x = torch.zeros(12)
        for i in range(12):
            x[i] = (b[i] - a[i] @ x) / a[i, i] + x[i]
        return x

    return solve


@EXAMPLES.near_miss("for-loop-indexing")
def a_wave_that_needs_two_steps_back():
    sources = torch.rand(16, 8)

    def simulate():
        before, now = torch.zeros(8), torch.zeros(8)
        for source in sources:
            before, now = now, 2 * now - before + 0.1 * source
        return now

    return simulate


@EXAMPLES.near_miss("for-loop-indexing")
def a_filter_that_predicts_and_corrects():
    seen, gain = torch.rand(16, 3), 0.3

    def track():
        state = torch.zeros(3)
        for observed in seen.unbind(0):
            state = state + gain * (observed - state)
        return state

    return track


@EXAMPLES.near_miss("for-loop-indexing")
def positions_that_stay_in_a_box():
    steps = torch.randn(18, 2)

    def walk():
        at = torch.zeros(2)
        for step in steps:
            at = (at + step).clamp(-1, 1)
        return at

    return walk


# ------------------------------------------------------------------------------- recurrent models


@EXAMPLES.near_miss("for-loop-indexing")
def a_state_space_scan():
    class Scan(nn.Module):
        def forward(self, a, b, c):
            state, out = torch.zeros(3, 4), []
            for decay, inward, outward in zip(a, b, c, strict=True):
                state = decay * state + inward
                out.append((state * outward).sum(-1))
            return torch.stack(out)

    scan = Scan()
    a, b, c = torch.rand(3, 14, 3, 4)
    return lambda: scan(a, b, c)


@EXAMPLES.near_miss("for-loop-indexing")
def linear_attention_step_by_step():
    q, k, v = torch.rand(3, 12, 4)

    def attend():
        memory, out = torch.zeros(4, 4), []
        for t in range(12):
            memory = memory + torch.outer(k[t], v[t])
            out.append(q[t] @ memory)
        return torch.stack(out)

    return attend


@EXAMPLES.near_miss("for-loop-indexing")
def a_cell_over_iterated_time():
    cell, x = nn.LSTMCell(3, 4), torch.rand(12, 2, 3)

    @torch.no_grad()
    def unroll():
        state, out = (torch.zeros(2, 4), torch.zeros(2, 4)), []
        for now in x:
            state = cell(now, state)
            out.append(state[0])
        return torch.stack(out)

    return unroll


@EXAMPLES.near_miss("for-loop-indexing")
def gates_written_by_hand():
    inward, recurrent, x = torch.rand(3, 8), torch.rand(4, 8), torch.rand(12, 2, 3)

    def unroll():
        hidden = torch.zeros(2, 4)
        for now in x.unbind(0):
            gate, value = (now @ inward + hidden @ recurrent).chunk(2, -1)
            hidden = hidden + gate.sigmoid() * (value.tanh() - hidden)
        return hidden

    return unroll


@EXAMPLES.near_miss("for-loop-indexing")
def a_moving_average_in_place():
    class Average:
        def __init__(self):
            self.mean = torch.zeros(4)

        def update(self, row):
            self.mean.mul_(0.9).add_(row, alpha=0.1)

    x = torch.rand(16, 4)

    def run():
        average = Average()
        for row in x:
            average.update(row)
        return average.mean

    return run


@EXAMPLES.near_miss("for-loop-indexing")
def a_moving_average_by_lerp():
    x, mean = torch.rand(16, 4), torch.zeros(4)

    def run():
        for i in range(16):
            mean.lerp_(x[i], 0.1)

    return run


@EXAMPLES.near_miss("for-loop-indexing")
def states_kept_in_a_tensor():
    inputs = torch.rand(14, 4)

    def run():
        states = torch.zeros(15, 4)
        for t in range(14):
            states[t + 1] = torch.tanh(states[t] + inputs[t])
        return states

    return run


@EXAMPLES.near_miss("for-loop-indexing")
def the_last_state_is_a_view_of_what_was_kept():
    inputs, kept = torch.rand(14, 4), torch.zeros(14, 4)

    def run():
        hidden = torch.zeros(4)
        for t in range(14):
            kept[t] = torch.tanh(hidden + inputs[t])
            hidden = kept[t]
        return hidden

    return run


@EXAMPLES.near_miss("for-loop-indexing")
def a_perceptron_that_learns_from_each_sample():
    x, y = torch.rand(16, 3), torch.rand(16).round()

    def fit():
        w = torch.zeros(3)
        for sample, label in zip(x, y, strict=True):
            w += 0.1 * (label - (sample @ w).sigmoid()) * sample
        return w

    return fit


# ------------------------------------------------------------------------------ stacked weights


@EXAMPLES.near_miss("for-loop-indexing")
def layers_kept_as_one_tensor():
    class Stack(nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = nn.Parameter(torch.rand(12, 4, 4), requires_grad=False)

        def forward(self, x):
            for weight in self.weights:
                x = x @ weight
            return x

    stack, x = Stack(), torch.rand(2, 4)
    return lambda: stack(x)


@EXAMPLES.near_miss("for-loop-indexing")
def layers_with_biases_kept_as_tensors():
    weights, biases, x = torch.rand(12, 4, 4), torch.rand(12, 4), torch.rand(2, 4)

    def forward():
        y = x
        for i in range(12):
            y = F.linear(y, weights[i], biases[i]).relu()
        return y

    return forward


@EXAMPLES.near_miss("for-loop-indexing")
def a_flow_of_stacked_scales():
    scales, shifts, x = torch.rand(12, 4), torch.rand(12, 4), torch.rand(3, 4)

    def forward():
        y = x
        for scale, shift in zip(scales.unbind(), shifts.unbind(), strict=True):
            y = y * scale + shift
        return y

    return forward


@EXAMPLES.near_miss("for-loop-indexing")
def reflections_applied_in_turn():
    vectors, x = F.normalize(torch.rand(12, 5), dim=-1), torch.rand(5)

    def rotate():
        y = x
        for v in vectors:
            y = y - 2 * (y @ v) * v
        return y

    return rotate


# --------------------------------------------------------------------------------- ragged pieces


@EXAMPLES.near_miss("for-loop-indexing")
def pieces_of_different_sizes():
    flat, sizes = torch.rand(78, 3), list(range(1, 13))
    return lambda: torch.stack([piece.mean(0) for piece in flat.split(sizes)])


@EXAMPLES.near_miss("for-loop-indexing")
def samples_cut_to_their_lengths():
    x, lengths = torch.rand(12, 9, 3), [3, 9, 4, 7, 2, 8, 5, 6, 1, 9, 4, 3]
    return lambda: torch.stack([x[i, :n].mean(0) for i, n in enumerate(lengths)])


@EXAMPLES.near_miss("for-loop-indexing")
def texts_without_their_padding():
    ids = torch.randint(1, 9, (12, 8))
    ids[torch.arange(8)[None] > torch.arange(12)[:, None] % 8] = 0
    return lambda: [row[row != 0].tolist() for row in ids]


# ------------------------------------------------------------------- what is no loop over elements


@EXAMPLES.near_miss("for-loop-indexing", also="single-tensor-optimizer")
def a_quasi_newton_optimizer():
    weights = nn.Parameter(torch.rand(6))
    optimizer = torch.optim.LBFGS([weights], lr=0.1, max_iter=15, history_size=12)

    def closure():
        optimizer.zero_grad()
        loss = (weights**4).sum()
        loss.backward()
        return loss

    return lambda: optimizer.step(closure)


@EXAMPLES.near_miss("for-loop-indexing")
def a_stencil_that_is_written_out():
    x = torch.rand(2, 14, 14)
    shifts = [(i, j) for i in range(4) for j in range(4)]

    def peaks():
        peak = torch.ones(2, 10, 10, dtype=torch.bool)
        for i, j in shifts:
            peak = peak & (x[:, 2:12, 2:12] >= x[:, i : i + 10, j : j + 10])
        return peak

    return peaks


@EXAMPLES.near_miss("for-loop-indexing")
def a_sheet_of_small_pictures():
    pictures = torch.rand(16, 3, 6, 6)

    def sheet():
        grid = torch.zeros(3, 32, 32)
        for k in range(16):
            top, left = k // 4 * 8, k % 4 * 8
            grid.narrow(1, top, 6).narrow(2, left, 6).copy_(pictures[k])
        return grid

    return sheet


@EXAMPLES.near_miss("for-loop-indexing")
def sizes_that_a_nested_tensor_keeps():
    rows = [torch.rand(1 + n % 5, 8) for n in range(12)]

    @torch.no_grad()
    def attend():
        x = torch.nested.nested_tensor(rows, layout=torch.jagged)
        heads = x.unflatten(-1, (2, 4)).transpose(1, 2)
        return F.scaled_dot_product_attention(heads, heads, heads)

    return attend


@EXAMPLES.near_miss("for-loop-indexing")
def rows_that_a_test_compares():
    left = torch.rand(12, 3)
    right = left.clone()

    def check():
        for i in range(12):
            assert torch.allclose(left[i], right[i])

    return check


@EXAMPLES.near_miss("for-loop-indexing")
def iterated_rows_that_a_test_compares():
    left = torch.rand(12, 3)
    right = left.clone()

    def check():
        for one, other in zip(left, right, strict=True):
            torch.testing.assert_close(one, other)

    return check


@EXAMPLES.near_miss("for-loop-indexing")
def a_batch_that_a_test_compares_with_its_samples():
    model, x = nn.Linear(3, 2).eval(), torch.rand(12, 3)

    @torch.no_grad()
    def check():
        together = model(x)
        for i in range(12):
            assert torch.allclose(together[i], model(x[i]), atol=1e-5)

    return check


@EXAMPLES.near_miss("for-loop-indexing")
def numbers_that_a_test_compares():
    x = torch.rand(15)

    def check():
        for value in x:
            assert 0 <= value
            assert value <= 1

    return check


@EXAMPLES.near_miss("for-loop-indexing", unlike="2.6.")
def vectors_that_are_printed():
    some = [torch.rand(14), torch.arange(14), torch.rand(14) > 0.5, torch.rand(14).double() * 1e6]
    return lambda: [repr(one) for one in some]


@EXAMPLES.near_miss("for-loop-indexing")
def numbers_that_are_formatted():
    losses = torch.rand(14)
    return lambda: " ".join(f"{loss:.3f}" for loss in losses)


@EXAMPLES.near_miss("for-loop-indexing")
def batches_of_rows_for_inference():
    model, x = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)), torch.rand(48, 3)

    @torch.inference_mode()
    def predict():
        return torch.cat([model(batch) for batch in x.split(4)])

    return predict


@EXAMPLES.near_miss("for-loop-indexing")
def queries_compared_with_a_table_batch_by_batch():
    queries, table = torch.rand(64, 4), torch.rand(100, 4)
    return lambda: torch.cat([torch.cdist(some, table).argmin(1) for some in queries.split(4)])


@EXAMPLES.near_miss("for-loop-indexing")
def indices_of_shuffled_batches():
    x, y = torch.rand(48, 3), torch.rand(48)
    weight = torch.zeros(3, requires_grad=True)

    def epoch():
        for chosen in torch.randperm(48).split(4):
            loss = (x[chosen] @ weight - y[chosen]).square().mean()
            (grad,) = torch.autograd.grad(loss, weight)
            with torch.no_grad():
                weight.sub_(grad, alpha=0.1)

    return epoch


@EXAMPLES.near_miss("for-loop-indexing")
def coefficients_that_are_unpacked():
    coefficients, x = torch.rand(10), torch.rand(5)

    def evaluate():
        a, b, c, d, *_ = coefficients
        return a * x.sin() + b * x.cos() + c * x.exp() + d

    return evaluate


@EXAMPLES.near_miss("for-loop-indexing")
def a_cache_that_each_layer_reads():
    layers = [nn.Linear(4, 4) for _ in range(12)]
    cache, x = torch.rand(12, 2, 4), torch.rand(2, 4)

    @torch.no_grad()
    def forward():
        y = x
        for layer, kept in zip(layers, cache, strict=True):
            y = layer(y) + kept
        return y

    return forward


# ------------------------------------------------------------------- sums, and what is like them


@EXAMPLES.positive("for-loop-indexing")
def two_losses_added_to_one_total():
    a, b = torch.rand(16, 6, requires_grad=True), torch.rand(16, 6)

    def step():
        total = torch.zeros(())
        for mine, theirs in zip(a, b, strict=True):  # <- here
            total += F.mse_loss(mine, theirs)
            total += 0.1 * mine.abs().sum()
        total.backward()

    return step


@EXAMPLES.positive("for-loop-indexing")
def a_contrastive_loss_row_by_row():
    z = F.normalize(torch.rand(20, 6), dim=-1).requires_grad_()

    def step():
        scores, loss = z @ z.T / 0.1, 0.0
        for i in range(len(scores)):
            loss = loss - scores[i, i] + torch.logsumexp(scores[i], 0)  # <- here
        (loss / len(scores)).backward()

    return step


@EXAMPLES.near_miss("for-loop-indexing")
def two_sums_that_feed_each_other():
    push = torch.rand(20, 3)

    def simulate():
        place, speed = torch.zeros(3), torch.zeros(3)
        for i in range(20):
            speed = speed + push[i]
            place = place + speed
        return place

    return simulate


@EXAMPLES.near_miss("for-loop-indexing")
def a_product_and_a_sum_in_turn():
    gates, inputs = torch.rand(20, 3), torch.rand(20, 3)

    def scan():
        state = torch.zeros(3)
        for gate, given in zip(gates, inputs, strict=True):
            state = state * gate
            state = state + given
        return state

    return scan


@EXAMPLES.near_miss("for-loop-indexing")
def scales_handed_down_a_tree():
    parents, own = [0] + [(i - 1) // 2 for i in range(1, 31)], torch.rand(31, 4)

    def hand_down():
        scales = [own[0]]
        for i in range(1, 31):
            scales.append(scales[parents[i]] * own[i])
        return torch.stack(scales)

    return hand_down


@EXAMPLES.near_miss("for-loop-indexing")
def a_season_of_twelve_steps():
    noise = torch.rand(60, 3)

    def simulate():
        seen = [noise[i] for i in range(12)]
        for t in range(12, 60):
            seen.append(0.5 * seen[t - 12] + noise[t])
        return torch.stack(seen)

    return simulate


@EXAMPLES.near_miss("for-loop-indexing")
def a_season_longer_than_a_first_look():
    noise = torch.rand(90, 3)

    def simulate():
        seen = list(noise[:24].clone().split(1))
        for t in range(24, 90):
            seen.append((seen[t - 24] + noise[t]).tanh())
        return torch.cat(seen)

    return simulate


@EXAMPLES.near_miss("for-loop-indexing")
def a_season_of_four_steps():
    noise = torch.rand(40, 3)

    def simulate():
        seen = [noise[i] for i in range(4)]
        for t in range(4, 40):
            seen.append(0.5 * seen[t - 4] + noise[t])
        return torch.stack(seen)

    return simulate
