"""Tell user code from library code by the names of Python frames in a stored trace.

torch writes ``file(line): function``, with the file relative to the folder of ``sys.path`` that
contains it: ``train.py`` and ``net/blocks.py`` are as relative as ``transformers/trainer.py``.
"""

from __future__ import annotations

import re
import sys
from enum import IntEnum
from typing import NamedTuple

from pytest_torchprof.core.lazy_regex import late


class Owner(IntEnum):
    """Whose code it is, least informative first."""

    MACHINERY = 0
    LIBRARY = 1
    USER = 2


class Frame(NamedTuple):
    """A Python function of a trace. ``line`` is where it begins, or its current line when recording
    began; torch does not record the line of a call.
    """

    file: str
    line: int
    function: str

    @property
    def location(self) -> str:
        """In the form that editors recognize."""
        return f"{self.file}:{self.line}"

    @property
    def called(self) -> str:
        """The function as a path shows it."""
        return f"{self.function}()" if self.function.isidentifier() else self.function


_FRAME = late(r"(?P<file>.+)\((?P<line>\d+)\): (?P<function>.*)", re.DOTALL)
_ABSOLUTE = late(r"/|[A-Za-z]:/")
_INSTALLED = late(r"/(site|dist)-packages/(?P<inner>.*)")
#: The standard library outside ``sys.path``, and code that torch.compile generates.
_GENERATED = late(r"/lib/python3\.\d+/|/torchinductor_[^/]*/|/torch_compile_debug/")
_CELL = late(r"<ipython-input")

#: Python's own modules; ``test.py`` is more likely the user's. The last ones are of other versions.
_STANDARD = (sys.stdlib_module_names - {"test"}) | {
    *("asynchat", "asyncore", "distutils", "imp", "smtpd", "sre_compile", "sre_constants"),
    *("sre_parse", "tomllib", "zipimport"),
}
_TOOLS = """torch functorch torchgen triton numpy cupy pytest _pytest pluggy py xdist execnet
    hypothesis expecttest pytest_torchprof tqdm IPython ipykernel traitlets debugpy pydevd six
    decorator wrapt typing_extensions torch_guard"""
_BUILT_ON = """accelerate aiter albumentations apex audiocraft bitsandbytes cv2 datasets deepspeed
    detectron2 diffusers e3nn einops fairscale fairseq fastai flash_attn flashinfer fvcore gpytorch
    hydra ignite imageio joblib kornia lightning lightning_fabric mmcv mmdet mmengine mmseg monai
    nemo omegaconf open_clip opacus pandas peft PIL pyro pytorch3d pytorch_lightning ray safetensors
    scipy segment_anything sentence_transformers sgl_kernel sglang skimage sklearn skorch sympy
    tensordict timm tokenizers torch_geometric torch_scatter torch_sparse torch_xla torchao
    torchaudio torchdata torchmetrics torchrec torchrl torchtext torchtitan torchtune torchvision
    transformer_engine transformers triton_kernels trl ultralytics unsloth vllm wandb webdataset
    xformers yunchang"""
#: What runs and compiles the user's code, and says nothing about call sites.
_MACHINERY = _STANDARD | frozenset(_TOOLS.split())
#: Without user code around, these frames say the most.
_LIBRARIES = frozenset(_BUILT_ON.split())


def frame_of(name: str) -> Frame | None:
    """What the name of a ``python_function`` event says; None for built-ins and modules.

    >>> frame_of("net/blocks.py(12): forward")
    Frame(file='net/blocks.py', line=12, function='forward')
    """
    found = _FRAME.fullmatch(name)
    if found is None or len(found["line"]) > 9:
        return None
    return Frame(found["file"], int(found["line"]), found["function"])


def owner_of(file: str) -> Owner:
    r"""Whose code the file of a frame is.

    >>> owner_of("train.py"), owner_of("timm/models/vit.py"), owner_of("torch\\nn\\functional.py")
    (<Owner.USER: 2>, <Owner.LIBRARY: 1>, <Owner.MACHINERY: 0>)
    """
    file = file.replace("\\", "/")
    if file.startswith("<"):
        return Owner.USER if _CELL.match(file) else Owner.MACHINERY
    if installed := _INSTALLED.search(file):
        inner = _owner_of_package(installed["inner"])
        return min(inner, Owner.LIBRARY)
    if _GENERATED.search(file):
        return Owner.MACHINERY
    return Owner.USER if _ABSOLUTE.match(file) else _owner_of_package(file)


def _owner_of_package(file: str) -> Owner:
    package = file.partition("/")[0].removesuffix(".py")
    if package in _MACHINERY:
        return Owner.MACHINERY
    return Owner.LIBRARY if package in _LIBRARIES else Owner.USER
