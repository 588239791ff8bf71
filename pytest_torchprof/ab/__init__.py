"""Two revisions of the code under test, their tests run in turn: ``torchprof ab``."""
