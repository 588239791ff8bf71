"""Retold from torchrec: jagged batches of any length, an empty one too, compile once."""

import pytest
import torch


def split_and_sum(values, lengths):
    """The sum of each feature's values; ``values`` are concatenated, as ``lengths`` says."""
    feature = torch.repeat_interleave(torch.arange(3), lengths, output_size=values.shape[0])
    return torch.zeros(3).index_add(0, feature, values)


def jagged(*lengths):
    values = torch.arange(float(sum(lengths)))
    torch._dynamo.decorators.mark_unbacked(values, 0)
    return values, torch.tensor(lengths)


@pytest.mark.min_graphs(1)
@pytest.mark.max_graphs(1)
@pytest.mark.max_recompiles(0)
@pytest.mark.max_graph_breaks(0)
def test_jagged_batches_compile_once():
    torch.compiler.reset()
    compiled = torch.compile(split_and_sum, backend="aot_eager")
    assert compiled(*jagged(1, 2, 3)).tolist() == [0, 3, 12]
    assert compiled(*jagged(0, 0, 0)).tolist() == [0, 0, 0]
    assert compiled(*jagged(4, 0, 1)).tolist() == [6, 0, 4]
