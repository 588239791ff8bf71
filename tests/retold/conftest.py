"""The project's tests are not ours: `test_retold.py` runs them in sessions of their own."""

collect_ignore = ["project"]
