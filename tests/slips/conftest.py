"""The project's tests are not ours: `test_slips.py` runs them in sessions of their own."""

collect_ignore = ["minilm"]
