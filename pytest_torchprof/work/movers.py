"""Which operators move bytes of their own, if they are not in the table of `work.traffic`."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from pytest_torchprof.core.lazy_regex import late
from pytest_torchprof.work.operators import work_of
from pytest_torchprof.work.traffic import TRAFFIC
from pytest_torchprof.work.views import IDLE, aten

#: Made of views, or of nothing at all where no operator is nested in them.
_NOTHING: Final = IDLE | aten(
    "empty empty_like empty_strided new_empty new_empty_strided empty_quantized empty_permuted "
    "resize_ meshgrid broadcast_tensors item"
)
#: Common operators that torch's dispatcher makes of others (``CompositeImplicitAutograd`` and
#: ``CompositeExplicitAutograd``, without a kernel of their own).
_COMPOSED: Final = aten(
    "_batch_norm_impl_index batch_norm binary_cross_entropy_with_logits constant_pad_nd "
    "cosine_similarity cross_entropy_loss dropout dropout_ embedding_backward full full_like "
    "group_norm index_put_ instance_norm l1_loss layer_norm log_softmax masked_fill max_pool1d "
    "max_pool2d max_pool3d new_full new_ones new_zeros nll_loss nll_loss_nd one_hot ones ones_like "
    "pad rand rand_like randint randn randn_like repeat rms_norm softmax zeros zeros_like"
)
#: Of the operators without arithmetic, those that copy or fill, by parts of their names.
_COPIES: Final = late(
    r"copy|cast|arange|range|linspace|logspace|eye|ones|zeros|full|fill|masked_select|pin_memory"
    r"|sparse|dense|coalesce|mkldnn|reorder|pack|convert|compress|quantize|int_repr|scatter|clone"
    r"|padded|jagged|nested_tensor_from|scalar_tensor|_backward|chunk_cat|to_cpu|from_file"
)


def is_composed(name: str) -> bool:
    """Whether operators nested in this one, if there are any, do all of its work.

    >>> is_composed("aten::linear"), is_composed("aten::index")
    (True, False)
    """
    return name in _COMPOSED or work_of(name) == "parts"


@lru_cache(maxsize=10_000)
def may_move(name: str) -> bool:
    """Whether this operator may move bytes that no operator nested in it moves.

    >>> may_move("aten::view"), may_move("aten::empty"), may_move("aten::index")
    (False, False, True)
    >>> may_move("MulBackward0"), may_move("mylib::step")
    (False, True)
    """
    if name in TRAFFIC:
        return True
    if name in _NOTHING:
        return False
    work = work_of(name)
    return work != "around" and (work != "idle" or _COPIES.search(name) is not None)
