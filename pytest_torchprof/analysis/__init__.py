"""Questions answered from a `Trace`: memory over time, operators, kernels, differences."""
