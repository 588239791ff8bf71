"""Small but complete models and a training loop, profiled by the tests beside this package."""
