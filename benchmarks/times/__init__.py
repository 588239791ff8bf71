"""Which procedure tells a slower test from a noisy machine: recorded series and their judges."""
