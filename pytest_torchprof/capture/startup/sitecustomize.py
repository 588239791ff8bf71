"""Loaded by each Python that a measured test starts, before the user's own module of this name.

It must run in any Python and change nothing that the program can see.
"""

import importlib.machinery
import importlib.util
import os
import sys


def _arm(folder: str) -> None:
    handed = os.environ.get("TORCHPROF_CHILD", "")
    version, _, what = handed.partition(":")
    if version != "%d.%d" % sys.version_info[:2]:  # noqa: UP031 - any Python
        return
    path = os.path.join(folder, "arming.py")  # noqa: PTH118 - pathlib takes time to import
    spec = importlib.util.spec_from_file_location("_torchprof_arming", path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    module.arm(what)


def _users(folder: str) -> None:
    """Run the user's own module in the place of this one, as if this folder were not there."""
    sys.path[:] = [one for one in sys.path if os.path.abspath(one) != folder]  # noqa: PTH100
    found = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if found is None or found.loader is None:
        raise ImportError("No module named 'sitecustomize'", name="sitecustomize")
    module = importlib.util.module_from_spec(found)
    sys.modules["sitecustomize"] = module
    found.loader.exec_module(module)


if __name__ == "sitecustomize":
    _FOLDER = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - as above
    try:  # noqa: SIM105 - contextlib takes time to import
        _arm(_FOLDER)
    except Exception:  # noqa: BLE001, S110 - the parent notices that it is not captured
        pass
    _users(_FOLDER)
