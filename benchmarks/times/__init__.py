"""Recorded time series, and procedures that tell a slower test from a noisy machine."""
