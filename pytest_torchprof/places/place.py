"""Where an event happened, for the user: a line of their code, or the operators around it."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
from msgspec.structs import replace

from pytest_torchprof.core.process import late
from pytest_torchprof.core.records import Frozen, Sendable
from pytest_torchprof.trace import nesting
from pytest_torchprof.trace.names import (
    ALL_STEPS,
    DEVICE_KINDS,
    REGION,
    Kind,
    Names,
    operators_named,
)
from pytest_torchprof.trace.names import MODULE as MODULE_NAME
from pytest_torchprof.trace.tree import ENGINE, forward_of, has_frames, node_around

if TYPE_CHECKING:
    from pytest_torchprof.trace.events import Events
    from pytest_torchprof.trace.nesting import Bools, Ints


# ---- Tell user code from library code by the names of Python frames in a stored trace.
#
# torch writes ``file(line): function``, with the file relative to the folder of ``sys.path`` that
# contains it: ``train.py`` and ``net/blocks.py`` are as relative as ``transformers/trainer.py``.


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


# ---- The Python functions and modules that identify places, nested with operators.

_owner_of = lru_cache(maxsize=100_000)(owner_of)
#: torch calls these for every operator on a subclass of Tensor.
_HANDLERS = frozenset({"__torch_function__", "__torch_dispatch__"})


class Stacks(Frozen, frozen=True):
    """What encloses some events of a trace.

    ``parent`` and ``depth`` are like those of `Events.frames`, for these events, the operators
    around them, and the functions and modules that identify a place: without torch's own functions,
    which are most. ``owner`` tells whose function an event is, ``module`` is the number of the
    class of its ``nn.Module``; -1 for none.
    """

    parent: Ints
    depth: Ints
    owner: Ints
    module: Ints

    @property
    def telling(self) -> Bools:
        """Functions and modules, not operators."""
        return (self.owner >= 0) | (self.module >= 0)

    def meets(self, events: Ints, outer: Ints) -> Bools:
        """Whether a function or module lies between each event and its outer one."""
        found, telling, at = np.zeros(len(events), bool), self.telling, events.copy()
        todo = np.flatnonzero(at != outer)
        while len(todo):
            at[todo] = self.parent[at[todo]]
            todo = todo[(at[todo] >= 0) & (at[todo] != outer[todo])]
            found[todo] = telling[at[todo]]
            todo = todo[~found[todo]]
        return found


def stacks_of(trace: Events, events: Ints) -> Stacks:
    """What encloses these events."""
    owner, module = trace.once(_owners)
    wanted = nesting.above(events, trace.parent) | (owner >= 0) | (module >= 0)
    wanted[events] = True
    rows = np.flatnonzero(wanted)
    above, level = nesting.nest(trace.ts[rows], trace.dur[rows], trace.thread[rows])
    parent, depth = np.full(len(trace), -1, np.int64), np.full(len(trace), -1, np.int64)
    parent[rows] = np.where(above >= 0, rows[above], -1)
    depth[rows] = level
    return Stacks(parent, depth, owner, module)


def _owners(trace: Events) -> tuple[Ints, Ints]:
    """Whose function each event is, and the number of its module's class; -1 for none."""
    python = trace.is_kind(Kind.PYTHON)
    owner, module = (np.full(len(trace), -1, np.int64) for _ in range(2))
    distinct, at = np.unique(trace.name[python], return_inverse=True)
    classes: dict[str, int] = {}
    owners = [_owner_and_class(trace.names[number], classes) for number in distinct.tolist()]
    owner[python], module[python] = np.array(owners, np.int64).reshape(-1, 2).T[:, at]
    return owner, module


def _owner_and_class(name: str, classes: dict[str, int]) -> tuple[int, int]:
    """Whose function it is, and the number of the module's class; else -1."""
    if module := MODULE_NAME.match(name):
        return -1, classes.setdefault(module[1], len(classes))
    frame = frame_of(name)
    if frame is None or frame.function in _HANDLERS:
        return -1, -1
    owner = _owner_of(frame.file)
    return (-1 if owner is Owner.MACHINERY else int(owner)), -1


#: Encloses everything, so it does not identify a place.
_HIDDEN = (ALL_STEPS, REGION)


#: Between the operators of a path.
PATH_SEPARATOR: Final = " > "


class Place(Frozen, frozen=True):
    """``location`` is ``file:line`` in the user's code, ``path`` the operators from the outermost
    in (from the user's function in, where it is known), ``module`` the path of the innermost
    ``nn.Module``; None if unknown.
    """

    location: str | None = None
    path: str | None = None
    module: str | None = None


Kinds: TypeAlias = Literal["stretch", "steps", "loop", "constructed"]


class PlacedEvents(NamedTuple):
    """Events that share one place, and events that the place must not enclose.

    ``kind``: ``"steps"`` are a loop's, and the place is outside of what each of them calls; of a
    ``"loop"`` they are the first and the last, and its place is the line that it repeats;
    ``"constructed"`` is a step of an optimizer or a fetch of a loader, and the place is
    the line that constructed that.
    """

    events: Ints
    apart: Ints
    kind: Kinds = "stretch"


#: By position among the requested events: the stretch whose place that event is to have.
Parts: TypeAlias = Mapping[int, PlacedEvents]
NO_PARTS: Final[Parts] = {}


class Placing(Protocol):
    """Tells where events of a trace happened."""

    def __call__(
        self, trace: Events, events: Ints, parts: Parts = NO_PARTS
    ) -> tuple[list[Place], Ints]:
        """Return the distinct places, and the index of each event's place.

        An event that stands for a stretch gets the place of what encloses all of the stretch, or
        most of it where that would enclose events apart from it: the innermost line outside of any
        module, and the outermost module. A loop gets the line that ran again and again, in the
        innermost function that ran once; an optimizer or a loader the line that constructed it,
        where that is known.
        """


def shared(paths: Iterable[int], chain: Sequence[tuple[int, int]]) -> int:
    """The longest common path; -1 for none. ``chain`` is as from `nesting.paths`.

    >>> shared([1, 2], [(-1, 7), (0, 8), (0, 9)])
    0
    """
    ways = []
    for path in set(paths):
        way = []
        at = path
        while at >= 0:
            way.append(at)
            at = chain[at][0]
        ways.append(way[::-1])
    common = -1
    for steps in zip(*ways, strict=False):
        if len(set(steps)) > 1:
            break
        common = steps[0]
    return common


def clear_of(
    way: int, paths: Mapping[int, int], others: Iterable[int], chain: Sequence[tuple[int, int]]
) -> int:
    """The first path, from ``way`` on toward most of ``paths``, that none of the others goes
    through; the last one if the others go through all of them.

    A line that the others go through, too, on another path, as in a function that both call, is
    left for what encloses it, if that is clear of them.

    ``paths`` go through ``way``; each has the number of its events. At a tie, the first is taken.
    With -1 as ``way``, which is around everything, the first path is wanted in any case.

    >>> chain = [(-1, 7), (0, 8), (0, 9), (2, 5)]
    >>> clear_of(0, {1: 1, 3: 2}, [1], chain), clear_of(0, {1: 2, 3: 1}, [0], chain)
    (2, 1)
    >>> clear_of(0, {3: 2}, [], chain), clear_of(0, {3: 2}, [3], chain)
    (0, 3)
    >>> clear_of(4, {4: 2}, [3], [*chain, (1, 5)])
    1
    """
    taken = {-1}
    for other in others:
        taken.update(_steps(other, -1, chain))
    left = [(_steps(path, way, chain), number) for path, number in paths.items()]
    at = way
    while at in taken:
        ahead = Counter[int]()
        for steps, number in left:
            ahead[steps[-1] if steps else -1] += number
        nearest = max(ahead, key=ahead.__getitem__, default=-1)
        if nearest < 0:
            break
        at = nearest
        left = [(steps[:-1], number) for steps, number in left if steps[-1:] == [at]]
    lines = {chain[path][1] for path in taken if path >= 0}
    while at >= 0 and at not in taken and chain[at][1] in lines and chain[at][0] not in taken:
        at = chain[at][0]
    return at


def counted(paths: Ints) -> dict[int, int]:
    """How often each path occurs, -1 for none left out, in the order of their first events.

    >>> counted(np.array([4, -1, 2, 4]))
    {4: 2, 2: 1}
    """
    known, first, number = np.unique(paths[paths >= 0], return_index=True, return_counts=True)
    order = first.argsort()
    return dict(zip(known[order].tolist(), number[order].tolist(), strict=True))


def _steps(path: int, way: int, chain: Sequence[tuple[int, int]]) -> list[int]:
    """The paths from this one outward to ``way``, which is excluded."""
    out = []
    while path not in (way, -1):
        out.append(path)
        path = chain[path][0]
    return out


def by_operator(trace: Events, events: Ints, parts: Parts = NO_PARTS) -> tuple[list[Place], Ints]:
    """Places in a trace without stacks: the path of operators and annotations. An event that stands
    for several gets its own.
    """
    del parts
    known = events >= 0
    rows = nesting.distinct(events[known])
    around = nesting.above(rows, trace.parent)
    around[rows] = True
    at = np.flatnonzero(around)
    position = np.full(len(trace), -1, np.int64)
    position[at] = np.arange(len(at))
    above = trace.parent[at]
    parent = np.where(above >= 0, position[above], -1)
    depth = trace.depth[at] if len(at) else np.zeros(0, np.int64)
    label = labels_of(trace, at)
    path, chain = nesting.paths(parent, depth, label)
    used, index = np.unique(path[position[rows]], return_inverse=True)
    shown = trace.shown_names[0]
    places = [
        Place(path=PATH_SEPARATOR.join(joined(p, chain, shown)) or None) for p in used.tolist()
    ]
    places.append(Place())
    out = np.full(len(events), len(places) - 1, np.int64)
    out[known] = index[np.searchsorted(rows, events[known])]
    return places, out


def labels_of(trace: Events, events: Ints) -> Ints:
    """What each event adds to a path, as numbers of `Events.shown_names`; -1 for nothing."""
    shown, number = trace.shown_names
    label = number[trace.name[events]]
    hidden = [i for i, name in enumerate(shown) if name in _HIDDEN]
    label[nesting.among(label, hidden) | trace.is_kind(Kind.RUNTIME)[events]] = -1
    return label


def joined(path: int, chain: Sequence[tuple[int, int]], shown: Sequence[str]) -> list[str]:
    """The labels of a path, the outermost first."""
    words: list[str] = []
    while path >= 0:
        path, label = chain[path]
        words.append(shown[label])
    return words[::-1]


# ---- Locate events by the Python functions and modules around them.


def by_frames(trace: Events, events: Ints, parts: Parts = NO_PARTS) -> tuple[list[Place], Ints]:
    """Places by the innermost function of the user's code; by operators in a trace without stacks.

    Events in library code that no user code encloses are placed there. An operator of the backward
    pass has the place of the forward operator whose gradient it computes. The path is the function
    and the operators in it. What one line does in several modules of the same classes is one place;
    ``*`` stands for module numbers that differ.
    """
    if not has_frames(trace):
        return by_operator(trace, events)
    known = events >= 0
    rows = nesting.distinct(events[known])
    forward = forward_of(trace, rows)
    found = stacks_of(trace, nesting.distinct(np.concatenate([rows, forward[forward >= 0]])))
    # In a user's own `backward`, or in recomputation, the functions around the event decide.
    back = np.flatnonzero(forward >= 0)
    node = node_around(trace, rows[back])
    forward[back[found.meets(rows[back], node)]] = -1
    around = _Around(trace, found, rows, np.where(forward >= 0, forward, rows))
    _, first, index = np.unique(around.key, return_index=True, return_inverse=True)
    modules = _grouped(index, around.module, len(first))
    places = [around.place(i, modules[n]) for n, i in enumerate(first.tolist())]
    places.append(Place())
    out = np.full(len(events), len(places) - 1, np.int64)
    out[known] = index[np.searchsorted(rows, events[known])]
    for position, around_all in _around(trace, parts).items():
        own = places[out[position]]
        loop = parts[position].kind == "loop"
        places.append(replace(around_all, module=own.module) if loop else around_all)
        out[position] = len(places) - 1
    return places, out


def _around(trace: Events, parts: Parts) -> dict[int, Place]:
    """The user's innermost function around several events that no module calls, and their outermost
    module; no entry where there is no such function. Of a loop, the one that ran once for all.
    """
    if not parts:
        return {}
    every = [events for stretch in parts.values() for events in (stretch.events, stretch.apart)]
    found = stacks_of(trace, nesting.distinct(np.concatenate(every)))
    number, inside = trace.name, found.module >= 0
    module = np.where(inside, number, -1)
    for level in nesting.levels(found.depth):
        above = found.parent[level]
        module[level] = np.where(module[above] >= 0, module[above], module[level])
    users = (found.owner == Owner.USER) & (module < 0)
    path, chain = nesting.paths(found.parent, found.depth, np.where(users, number, -1))
    out = {}
    for position, (events, apart, kind) in parts.items():
        if kind == "constructed":
            continue  # stacks do not tell who constructed it
        if kind == "loop":
            function = _function_around(trace, found, *events.tolist())
            if function is not None:
                out[position] = Place(function.location, function.called)
            continue
        way = shared(path[events].tolist(), chain)
        way = clear_of(way, counted(path[events]), path[apart].tolist(), chain)
        function = frame_of(trace.names[chain[way][1]]) if way >= 0 else None
        if function is not None:
            names = {trace.names[one] if one >= 0 else "" for one in module[events].tolist()}
            name = names.pop().removeprefix("nn.Module: ") if len(names) == 1 else None
            out[position] = Place(function.location, function.called, name or None)
    return out


def _function_around(trace: Events, found: Stacks, first: int, last: int) -> Frame | None:
    """The user's innermost function around both of these events."""
    outer = set[int]()
    at = last
    while at >= 0:
        outer.add(at)
        at = int(found.parent[at])
    at = first
    while at >= 0 and (at not in outer or found.owner[at] != Owner.USER):
        at = int(found.parent[at])
    return frame_of(trace.names[trace.name[at]]) if at >= 0 else None


def _grouped(group: Ints, value: Ints, count: int) -> list[list[int]]:
    """The distinct values of each group."""
    out: list[list[int]] = [[] for _ in range(count)]
    width = int(value.max(initial=-1)) + 2
    pairs = nesting.distinct(group * width + value + 1)
    for number, one in zip((pairs // width).tolist(), (pairs % width - 1).tolist(), strict=True):
        out[number].append(one)
    return out


class _Around:
    """What encloses events: columns with one entry for each of ``rows``, -1 for none.

    ``frame`` is the function's name and ``module`` the path of module instances, of ``at``;
    ``operator`` is the path of operators, of ``rows`` themselves. Places with the same ``key`` are
    one: they differ only in modules of the same classes.
    """

    def __init__(self, trace: Events, stacks: Stacks, rows: Ints, at: Ints) -> None:
        self.trace = trace
        found = nesting.above(np.concatenate([rows, at]), stacks.parent)
        found[rows] = found[at] = True
        events = np.flatnonzero(found)
        position = np.full(len(trace), -1, np.int64)
        position[events] = np.arange(len(events))
        above = stacks.parent[events]
        above = np.where(above >= 0, position[above], -1)
        level, owner, classes = (c[events] for c in (stacks.depth, stacks.owner, stacks.module))
        name = trace.name[events]
        user = _innermost(above, level, np.where(owner == Owner.USER, name, -1))
        library = _innermost(above, level, np.where(owner == Owner.LIBRARY, name, -1))
        # The function's callers do not belong to its path.
        begins = (owner == Owner.USER) | ((owner == Owner.LIBRARY) & (user < 0))
        operator = labels_of(trace, events)
        operator[stacks.telling[events]] = -1
        operators, self.operators = nesting.paths(np.where(begins, -1, above), level, operator)
        modules, self.modules = nesting.paths(above, level, np.where(classes >= 0, name, -1))
        kinds, known = nesting.paths(above, level, classes)
        rows, at = position[rows], position[at]
        self.frame = np.where(user >= 0, user, library)[at]
        self.module, self.operator = modules[at], operators[rows]
        self.key = (self.frame + 1) * (len(known) + 1) + kinds[at] + 1
        self.key = self.key * (len(self.operators) + 1) + self.operator + 1

    def place(self, row: int, modules: list[int]) -> Place:
        """The place of a row whose equivalents ran in these modules."""
        names, shown = self.trace.names, self.trace.shown_names[0]
        frame = int(self.frame[row])
        function = frame_of(names[frame]) if frame >= 0 else None
        path = joined(int(self.operator[row]), self.operators, shown)
        path = [word for word in path if not word.startswith(ENGINE)]
        if function:
            path.insert(0, function.called)
        instances = [joined(one, self.modules, names) for one in modules]
        return Place(
            location=function.location if function else None,
            path=" > ".join(path) or None,
            module=".".join(map(_together, zip(*instances, strict=True))) or None,
        )


def _together(names: Sequence[str]) -> str:
    """Modules of one class that the same line calls in turn.

    >>> _together(["nn.Module: Linear_0", "nn.Module: Linear_3"])
    'Linear_*'
    """
    found = [name.removeprefix("nn.Module: ") for name in names]
    return found[0] if len(set(found)) == 1 else f"{found[0].rpartition('_')[0]}_*"


def _innermost(above: Ints, level: Ints, own: Ints) -> Ints:
    """The nearest number other than -1, of each event itself or of an event around it."""
    for rows in nesting.levels(level):
        own[rows] = np.where(own[rows] >= 0, own[rows], own[above[rows]])
    return own


# ---- Markers of lines, modules and steps in a trace: what is around each event.

#: Prefixes of the markers' names; a number follows. The last is around an optimizer's step or a
#: loader's fetch, with the number of the line that constructed the optimizer or the loader.
LINE, MODULE, CONSTRUCTOR = "torchprof::line#", "torchprof::module#", "torchprof::constructor#"
MARKERS: Final = (LINE, MODULE, CONSTRUCTOR)

#: torch's operator around the backward of one node of the graph.
_BACKWARD = Names(ENGINE)


def labels(trace: Events) -> tuple[Ints, Ints]:
    """The numbers of the innermost line's and module's marker around each event, -1 for none.

    A node's backward has the place of its forward, unless it runs lines of its own.
    """
    own = [_numbered(trace, prefix) for prefix in (LINE, MODULE)]
    begun, lines = _begun_in(trace, own[0])
    own[0][begun] = lines
    found = [_spread(trace, numbers) for numbers in own]
    backward = operators_named(trace, _BACKWARD)
    forward = forward_of(trace, backward)
    backward, forward = backward[forward >= 0], forward[forward >= 0]
    for numbers, known in zip(own, found, strict=True):
        numbers[backward] = np.where(found[0][forward] >= 0, known[forward], -1)
    return _spread(trace, own[0]), _spread(trace, own[1])


def _spread(trace: Events, own: Ints) -> Ints:
    """Each event's own number, else that of what is around it; -1 for none."""
    out = own.copy()
    for level in nesting.levels(trace.depth):
        out[level] = np.where(own[level] >= 0, own[level], out[trace.parent[level]])
    return out


def _begun_in(trace: Events, line: Ints) -> tuple[Ints, Ints]:
    """Annotations that begin while a line runs, and that line: they may end lines later."""
    marks = np.flatnonzero(line >= 0)
    real = ~trace.names_where(lambda name: name.startswith((*MARKERS, REGION)))
    rows = np.flatnonzero(trace.is_kind(Kind.ANNOTATION) & real)
    around = np.full(len(rows), -1, np.int64)
    above = nesting.nearest(line >= 0, trace.parent, trace.parent[marks])
    for thread in nesting.distinct(trace.thread[rows]).tolist():
        own = marks[trace.thread[marks] == thread]
        mine = np.flatnonzero(trace.thread[rows] == thread)
        at = np.searchsorted(trace.ts[own], trace.ts[rows[mine]], side="right") - 1
        around[mine] = np.append(own, -1)[at]
    ends = trace.ts + trace.dur
    while (over := (around >= 0) & (ends[around] <= trace.ts[rows])).any():
        around[over] = above[np.searchsorted(marks, around[over])]
    return rows[around >= 0], line[around[around >= 0]]


def outside_modules(trace: Events) -> tuple[Ints, list[tuple[int, int]], list[tuple[int, int]]]:
    """What is around each event outside of modules: its number; for each number the path of lines
    and the outermost module; and the paths, as from `nesting.paths`.
    """
    line, module = _numbered(trace, LINE), _numbered(trace, MODULE)
    for level in nesting.levels(trace.depth):
        above = module[trace.parent[level]]
        module[level] = np.where(above >= 0, above, module[level])
    path, chain = nesting.paths(trace.parent, trace.depth, np.where(module < 0, line, -1))
    width = int(module.max(initial=-1)) + 2
    keys, number = np.unique((path + 1) * width + module + 1, return_inverse=True)
    outer = [(key // width - 1, key % width - 1) for key in keys.tolist()]
    return number.astype(np.int64), outer, chain


def constructors(trace: Events) -> Ints:
    """The number of the line that constructed the optimizer or loader whose step or fetch is around
    each event, -1 for none.
    """
    return _spread(trace, _numbered(trace, CONSTRUCTOR))


def module_calls(trace: Events) -> Ints:
    """The outermost marker of a module around each event, -1 for none."""
    call: Ints = np.where(_numbered(trace, MODULE) >= 0, np.arange(len(trace)), -1)
    for level in nesting.levels(trace.depth):
        above = call[trace.parent[level]]
        call[level] = np.where(above >= 0, above, call[level])
    return call


class LineMarks(NamedTuple):
    """Markers of lines: the number of each one's line, and the marker around each."""

    line: Sequence[int]
    above: Sequence[int]

    def around(self, mark: int) -> list[int]:
        """This marker and those around it, from the outermost in; none of -1."""
        found = []
        while mark >= 0:
            found.append(mark)
            mark = self.above[mark]
        return found[::-1]


def line_marks(trace: Events) -> tuple[Ints, LineMarks]:
    """The number of the innermost line's marker around each event, -1 for none; and all markers."""
    line = _numbered(trace, LINE)
    rows = np.flatnonzero(line >= 0)
    own = np.full(len(trace), -1, np.int64)
    own[rows] = np.arange(len(rows))
    around = own.copy()
    for level in nesting.levels(trace.depth):
        around[level] = np.where(own[level] >= 0, own[level], around[trace.parent[level]])
    above = trace.parent[rows]
    above = np.where(above >= 0, around[above], -1)
    return around, LineMarks(line[rows].tolist(), above.tolist())


def _numbered(trace: Events, prefix: str) -> Ints:
    number = [int(n[len(prefix) :]) if n.startswith(prefix) else -1 for n in trace.names]
    return np.array(number, np.int64)[trace.name] if number else np.zeros(0, np.int64)


# ---- Locate events by the user's lines, which another run of the same code marked.

#: Numbers at the end of names of steps and compiled regions, which a process counts up.
_COUNTED = late(r"(?<=[# ])\d+(/\d+)*$")


class FunctionCalls(Sendable, frozen=True):
    """How often a function of the user began, by the number of the line that called it.

    ``via``: the library's function in between, such as ``torch.utils.checkpoint.checkpoint``.
    """

    file: str
    name: str
    line: int
    via: str
    count: int


class Marks(Sendable, frozen=True):
    """What the markers of a run stand for, by number: ``file:line``, and modules' paths.

    ``functions`` are the qualified names of the lines' functions, and ``calls`` says which ran.
    """

    lines: tuple[str | None, ...] = ()
    modules: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    calls: tuple[FunctionCalls, ...] = ()


class Located:
    """Tells where events of a measured run happened, from the trace of a run with markers.

    The sequences of the two runs' operators are aligned.
    """

    def __init__(self, trace: Events, marks: Marks) -> None:
        self._words: dict[str, int] = {}
        self.marks = marks
        self._lines, self._modules = lines, modules = marks.lines, marks.modules
        line, module = labels(trace)
        width = len(modules) + 1  # 0 is no module, and no line
        known, place = np.unique((line + 1) * width + module + 1, return_inverse=True)
        self._places = []
        #: The number of each place's line, and of no place, the last one.
        self._line_of_place = np.append(known // width - 1, -1)
        for number in known.tolist():
            at, within = divmod(number, width)
            where = lines[at - 1] if at else None
            self._places.append(Place(where, None, modules[within - 1] if within else None))
        outside, self._outer, self._chain = outside_modules(trace)
        words, call = self._words_of(trace), module_calls(trace)
        mark, self._nested = line_marks(trace)
        constructed = constructors(trace)
        self._runs = [
            _Run(
                words[rows],
                place[rows],
                outside[rows],
                call[rows],
                mark[rows],
                constructed[rows],
            )
            for rows in _sequences(trace)
        ]

    def __call__(
        self, trace: Events, events: Ints, parts: Parts = NO_PARTS
    ) -> tuple[list[Place], Ints]:
        """Return the distinct places, and the index of each event's place."""
        paths, path = by_operator(trace, events)
        place = trace.once(self._spread, "place")
        mine = np.full(len(events), -1, np.int64)
        mine[events >= 0] = place[events[events >= 0]]
        keys, at = np.unique((mine + 1) * len(paths) + path, return_inverse=True)
        found = []
        for number in keys.tolist():
            known, way = divmod(number, len(paths))
            here = self._places[known - 1] if known else Place()
            found.append(Place(here.location, paths[way].path, here.module))
        at = at.astype(np.int64)
        for position, stretch in parts.items():
            own = found[at[position]]
            if stretch.kind in ("stretch", "steps"):
                around = self._around(trace, stretch)
                if around is not None and stretch.kind == "steps":
                    around = self._called(trace, stretch, around)
            else:
                find = self._repeated if stretch.kind == "loop" else self._constructed
                line = find(trace, stretch)
                around = None if line is None else replace(own, location=line)
            if around is not None:
                found.append(replace(around, path=own.path))
                at[position] = len(found) - 1
        return found, at

    def stacks(self, trace: Events, events: Ints) -> list[tuple[int, ...]]:
        """The numbers of the lines that were running at each event, from the outermost in.

        A node's backward has those of its forward, unless it runs lines of its own.
        """
        line = self._line_of_place[trace.once(self._spread, "place")[events]]
        mark = trace.once(self._spread, "mark")
        forward = forward_of(trace, events)
        ways = mark[events], np.where(forward >= 0, mark[forward], -1)
        found = []
        for own, *marks in zip(line.tolist(), *(way.tolist() for way in ways), strict=True):
            stacks = (
                tuple(self._nested.line[one] for one in self._nested.around(m)) for m in marks
            )
            alone = (own,) if own >= 0 else ()
            found.append(next((one for one in stacks if one[-1:] == alone), alone))
        return found

    def module_calls(self, trace: Events) -> Ints:
        """The number of each event's outermost call of a module, -1 for none or unknown."""
        return self._spread(trace, "call")

    def _around(self, trace: Events, stretch: PlacedEvents) -> Place | None:
        """What encloses the whole stretch, outside of any module; None where no line is known."""
        outside = trace.once(self._spread, "outside")
        number = outside[stretch.events]
        known = [self._outer[one] for one in nesting.distinct(number[number >= 0]).tolist()]
        path = np.array([path for path, _ in self._outer] + [-1], np.int64)
        way = shared((path for path, _ in known), self._chain)
        others = nesting.distinct(path[outside[stretch.apart]]).tolist()
        way = clear_of(way, counted(path[number]), others, self._chain)
        if way < 0:
            return None
        modules = {module for _, module in known}
        module = self._modules[modules.pop()] if len(modules) == 1 and min(modules) >= 0 else None
        return Place(self._lines[self._chain[way][1]], None, module)

    def _called(self, trace: Events, steps: PlacedEvents, around: Place) -> Place:
        """The same, or the line that a loop repeats where that calls what has this place."""
        marks = trace.once(self._spread, "mark")[steps.events].tolist()
        inner, most = list[int](), -1
        # A loop may run several times: the steps before and after a join share the most lines.
        for at in np.searchsorted(steps.events, steps.apart).tolist():
            if 0 < at < len(marks):
                one, other = (self._nested.around(mark) for mark in marks[at - 1 : at + 1])
                both = sum(a == b for a, b in zip(one, other, strict=False))
                inner, most = (one[both:], both) if both > most else (inner, most)
        lines = [self._lines[self._nested.line[mark]] for mark in inner]
        return replace(around, location=lines[0]) if around.location in lines[1:] else around

    def _repeated(self, trace: Events, stretch: PlacedEvents) -> str | None:
        """The line that a loop repeats; None where no line is known."""
        marks = trace.once(self._spread, "mark")[stretch.events].tolist()
        first, last = (self._nested.around(mark) for mark in marks)
        both = sum(a == b for a, b in zip(first, last, strict=False))
        if not (first and last):
            return None
        # A loop on one line may be within one marker.
        return self._lines[self._nested.line[first[min(both, len(first) - 1)]]]

    def _constructed(self, trace: Events, step: PlacedEvents) -> str | None:
        """The line that constructed what steps or fetches; None where that is not known."""
        line = int(trace.once(self._spread, "constructor")[step.events[0]])
        return self._lines[line] if line >= 0 else None

    def _spread(self, trace: Events, what: str) -> Ints:
        """A column of `_Run` for each event of another run, -1 where unknown."""
        words = self._words_of(trace)
        place = np.full(len(trace), -1, np.int64)
        for rows, run in zip(_sequences(trace), self._runs, strict=True):
            place[rows] = run.laid(what, words[rows])
        ops = trace.is_kind(Kind.OP)
        for level in nesting.levels(trace.depth):
            todo = level[(place[level] < 0) & ops[trace.parent[level]]]
            place[todo] = place[trace.parent[todo]]
        device = np.flatnonzero(trace.is_kind(*DEVICE_KINDS) & (trace.launch >= 0))
        place[device] = place[trace.launch[device]]
        return place

    def _words_of(self, trace: Events) -> Ints:
        """A number for each event's name, the same in both traces."""
        words = self._words
        number = [words.setdefault(_COUNTED.sub("", name), len(words)) for name in trace.names]
        return np.array(number, np.int64)[trace.name] if number else np.zeros(0, np.int64)


class _Run(NamedTuple):
    """A sequence of events with markers: the number of each event's name, of its place, of what is
    around it outside of modules, of the outermost call of a module, of the innermost line's
    marker, and of the line that constructed what steps or fetches.
    """

    words: Ints
    place: Ints
    outside: Ints
    call: Ints
    mark: Ints
    constructor: Ints

    def laid(self, what: str, words: Ints) -> Ints:
        """One of these columns for another run's sequence, -1 where uncertain."""
        place = getattr(self, what)
        out = np.full(len(words), -1, np.int64)
        shorter = min(len(words), len(self.words))
        head = _alike(words[:shorter], self.words[:shorter])
        # The common head and tail must not overlap.
        rest = shorter - head
        tail = _alike(words[::-1][:rest], self.words[::-1][:rest])
        out[:head] = place[:head]
        if tail:
            out[-tail:] = place[-tail:]
        ours, theirs = slice(head, len(words) - tail), slice(head, len(self.words) - tail)
        out[ours] = _in_turn(words[ours], self.words[theirs], place[theirs])
        return np.where(out >= 0, out, _of_name(words, self.words, place))


def _alike(a: Ints, b: Ints) -> int:
    """Length of the common prefix."""
    differ = np.flatnonzero(a != b)
    return int(differ[0]) if len(differ) else len(a)


def _in_turn(words: Ints, known: Ints, place: Ints) -> Ints:
    """The place of a name's k-th event, if both runs have as many."""
    out = np.full(len(words), -1, np.int64)
    width = int(max(words.max(initial=0), known.max(initial=0))) + 1
    as_many = np.bincount(words, minlength=width) == np.bincount(known, minlength=width)
    mine, theirs = np.argsort(words, kind="stable"), np.argsort(known, kind="stable")
    mine, theirs = mine[as_many[words[mine]]], theirs[as_many[known[theirs]]]
    out[mine] = place[theirs]
    return out


def _of_name(words: Ints, known: Ints, place: Ints) -> Ints:
    """The place of all events of a name, if they share one."""
    width = int(max(words.max(initial=0), known.max(initial=0))) + 1
    least, most = np.full(width, np.iinfo(np.int64).max), np.full(width, -1, np.int64)
    np.minimum.at(least, known, place)
    np.maximum.at(most, known, place)
    out: Ints = np.where(least == most, most, -1)[words]
    return out


# -------------------------------------------------------------------- sequences


def _sequences(trace: Events) -> list[Ints]:
    """Events of the region, without markers, in an order that two runs of one program share.

    Operators and annotations of the test's thread; those of other threads, above all autograd's;
    and runtime calls outside of operators.
    """
    marks = trace.is_kind(Kind.ANNOTATION) & trace.named(REGION)
    test = nesting.among(trace.thread, nesting.distinct(trace.thread[marks]))
    real = ~trace.names_where(lambda name: name.startswith(MARKERS))
    ops = trace.is_kind(Kind.OP) & real
    inside = ops.copy()
    for level in nesting.levels(trace.depth):
        inside[level] |= inside[trace.parent[level]]
    region = trace.in_region & real
    calls = np.flatnonzero(region & trace.is_kind(Kind.OP, Kind.ANNOTATION))
    others = calls[~test[calls]]
    _, first, thread = np.unique(trace.thread[others], return_index=True, return_inverse=True)
    others = others[np.argsort(first[thread], kind="stable")] if len(others) else others
    waits = np.flatnonzero(region & trace.is_kind(Kind.RUNTIME) & test & ~inside)
    return [calls[test[calls]], others, waits]


# ---- Places as reports show them: relative to the tests' folder, and by operator.


class Roots:
    """The folder that locations are shown relative to, as spelled and resolved.

    ``is_test``: whether a file of this name is a test's own.
    """

    def __init__(self, root: Path, is_test: Callable[[str], bool] = lambda _: False) -> None:
        self._is_test = is_test
        self._prefixes = {f"{path}{os.sep}" for path in (root, root.resolve())}
        self._shared: dict[str, str] = {}

    def relative(self, location: str | None) -> str | None:
        """``file:line`` as shown; independent of a test's patches of paths."""
        for prefix in self._prefixes:
            if location is not None and location.startswith(prefix):
                return location[len(prefix) :].replace(os.sep, "/")
        return location

    def are_of_test(self, location: str | None, operators: str | None) -> bool:
        """Whether it is a line of a test's own file, and not a path of ``operators`` instead."""
        return location not in (None, operators) and self._is_test(location.rpartition(":")[0])

    def shared(self, file: str) -> str:
        """The file as other machines have it, too: below the root, or where it is imported from."""
        if (known := self._shared.get(file)) is None:
            known = self.relative(file) or file
            folders = (f"{folder.rstrip(os.sep)}{os.sep}" for folder in sys.path if folder)
            longest = max((one for one in folders if known.startswith(one)), key=len, default="")
            known = self._shared[file] = known[len(longest) :].replace(os.sep, "/")
        return known


class CallSites:
    """Tells where an operator was called in the measured region."""

    def __init__(
        self, trace: Events, placing: Placing, roots: Roots, name_of: Callable[[str], str]
    ) -> None:
        self._trace, self._placing, self._roots, self._name_of = trace, placing, roots, name_of

    def __call__(self, name: str) -> list[tuple[str, str | None, int]]:
        """(location, module, calls), the most calls first; unknown locations are left out."""
        trace = self._trace
        named = trace.names_where(lambda known: self._name_of(known) == name)
        kinds = trace.is_kind(Kind.OP, Kind.ANNOTATION)
        calls = np.flatnonzero(named & trace.selection & kinds)
        try:
            places, at = self._placing(trace, calls)
        except Exception:  # noqa: BLE001 - a failure without lines is a failure
            return []
        count: Counter[tuple[str, str | None]] = Counter()
        for place, calls_there in enumerate(np.bincount(at, minlength=len(places)).tolist()):
            location = self._roots.relative(places[place].location)
            if location is not None and calls_there:
                count[location, places[place].module] += calls_there
        return _most_called(count)


def _most_called(count: Counter[tuple[str, str | None]]) -> list[tuple[str, str | None, int]]:
    found = [(location, module, calls) for (location, module), calls in count.items()]
    return sorted(found, key=lambda row: (-row[2], row[0], row[1] or ""))


def joined_sites(
    sites: Sequence[Callable[[str], Sequence[tuple[str, str | None, int]]]],
) -> Callable[[str], list[tuple[str, str | None, int]]]:
    """Call sites of several processes as one, with their calls added up."""

    def where(name: str) -> list[tuple[str, str | None, int]]:
        count: Counter[tuple[str, str | None]] = Counter()
        for one in sites:
            for location, module, calls in one(name):
                count[location, module] += calls
        return _most_called(count)

    return where
