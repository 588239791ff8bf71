"""Accepted numbers: in files beside the tests, and inline in them."""
