import torch

from minilm.metrics import calibration_error, f1, nearest, top_accuracy


def test_f1():
    guesses, targets = torch.tensor([0, 1, 1, 2]), torch.tensor([0, 1, 2, 2])
    torch.testing.assert_close(f1(guesses, targets, 3), torch.tensor([1, 2 / 3, 2 / 3]))


def test_top_accuracy():
    logits = torch.arange(10.0).expand(4, 10)
    assert top_accuracy(logits, torch.tensor([9, 5, 4, 0])) == 0.5


def test_a_sure_guess_is_calibrated():
    logits = 50 * torch.eye(5)
    assert calibration_error(logits, torch.arange(5)) < 1e-3


def test_each_vector_is_nearest_to_itself():
    vectors = torch.randn(32, 8)
    assert torch.equal(nearest(vectors, vectors)[:, 0], torch.arange(32))
