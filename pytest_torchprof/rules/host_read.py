"""The rule about reads that would make the host wait if the tensors were on a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_torchprof.analysis.missing import waits_gap
from pytest_torchprof.rules.rule import NO_MATCHES, Matches, rule

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events

#: What leads to each of these.
_BY: Final = {
    "aten::_local_scalar_dense": "item, float, bool, or if of a tensor",
    "aten::where": "where of one argument",
    "aten::nonzero": "a mask as an index, or where of one argument",
    "aten::resolve_neg": "tolist or numpy",
}


@rule(
    "host-read",
    fix="keep the value on the device: sum it up there, or use where, masked_fill or a fixed "
    "shape; or read it once, late",
    triggers=(
        r"aten::(_local_scalar_dense|nonzero|where|masked_select|_unique2?|unique_dim|"
        r"unique_consecutive|unique_dim_consecutive|equal|bincount|histc|_coalesce|one_hot|"
        r"resolve_neg)$"
    ),
    gated_by="host_reads",
    on_request=True,
)
def host_read(trace: Events) -> Matches:
    """The host asks for a value that would be on a device, and would wait for it there.

    ## What it does

    Counts operators that would make the host wait if their tensors were on a device, in a test that
    ran on the CPU: `item` and all that calls it, such as `float(x)`, `if x:`; `tolist`, `numpy`;
    `nonzero`, with masks as indices; `masked_select`, `unique`, `equal`, `bincount`, `one_hot` and
    others. The rule is checked only in tests that ask for it: with `--torchprof-device`, a limit on
    `host_reads` or its column, or a marker that forbids or allows it.

    Not counted is what is on the host by design: a `DataLoader` and its sampler, seeds, and
    counters of optimizers' steps. Allow others by operator, module or line:
    `allow_antipatterns("host-read", line="sampler.py", reason="…")`.

    ## Why it is slow

    The host runs ahead of the device and queues its work. When it waits, the queue runs empty, and
    the device is idle until the host has launched more.

    ## Example

    ```python
    for batch in batches:
        total += step(batch).item()
        hard = losses[losses > 2]
    ```

    ## Use instead

    ```python
    for batch in batches:
        total += step(batch).detach()
        hard = torch.where(losses > 2, losses, 0)  # as many as before
    print(total.item())
    ```
    """
    if trace.whole.once(waits_gap) is None:
        return NO_MATCHES
    from pytest_torchprof.analysis.estimates import host_reads  # few tests ask for it
    from pytest_torchprof.work.launches import READS

    found = host_reads(trace)
    if not len(found.event):
        return NO_MATCHES
    names = [trace.names[name] for name in trace.name[found.event].tolist()]
    return Matches(
        found.event,
        [
            f"on a device the host would wait for {getattr(READS.get(name), 'what', 'values')}: "
            f"{_BY.get(name, name.removeprefix('aten::').strip('_'))}"
            for name in names
        ],
        count=found.count,
        cost_ns=np.full(len(names), -1, np.int64),
    )
