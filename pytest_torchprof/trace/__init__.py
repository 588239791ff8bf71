"""Stored traces: reading them in, writing them out."""
