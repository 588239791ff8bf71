"""Short names of torch's own kernels, of CUB's, and of Composable Kernel's."""

from __future__ import annotations

from re import Match, Pattern
from typing import TYPE_CHECKING, Final

from pytest_torchprof.core.lazy_regex import late
from pytest_torchprof.render.kernel_families import joined
from pytest_torchprof.render.template_arguments import arguments, dtype_in, head

if TYPE_CHECKING:
    from pytest_torchprof.render.kernel_families import Make

#: Wrap a functor: ``BinaryFunctor<first, second, result, functor>``.
_WRAPPERS: Final = frozenset({"AUnaryFunctor", "BUnaryFunctor", "BinaryFunctor"})
#: What says only that it is a kernel.
_BEFORE: Final = late(r"^(?:launch_|CUDAFunctor(?:OnSelf|OnOther)?_|gpu_)")
_AFTER: Final = late(
    r"(?:_?(?:CUDA)?(?:kernel_cuda|cuda_kernel|kernel_impl|KernelImpl|Kernel|kernel|Functor|functor"
    r"|Ops|cuda_out|impl|cuda|and_transform|Math))+$"
)
_CAMEL: Final = late(r"(?<=[a-z0-9])(?=[A-Z])")
_LAUNCHERS: Final = late(r"gpu_(?:index_)?kernel\w*")
_NUMBER: Final = late(r"\(?[\d-]|true|false")
_PARENTHESES: Final = late(r"\(([^(){}]*)\)")


def _functor(text: str) -> tuple[str, str | None]:
    """What a functor computes, and its dtype."""
    name, given = head(text), arguments(text)
    if name in _WRAPPERS and given:
        what, dtype = _functor(given[-1])
        return what, dtype_in(given[0]) or dtype
    types = _PARENTHESES.search(text)
    inside = types[1].rsplit(",", 1)[-1] if types else ""
    dtype = dtype_in(given[0]) if given else None
    short = _AFTER.sub("", _BEFORE.sub("", name)) or name
    short = _CAMEL.sub("_", short).lower()
    return short.removeprefix("direct_"), dtype or dtype_in(inside)


def _is_type(text: str) -> bool:
    return dtype_in(head(text)) is not None


def _elementwise(match: Match[str], _plain: str) -> str | None:
    given = arguments(match.string)
    functors = [one for one in given if not _NUMBER.match(one) and not _is_type(one)]
    if not functors:
        return None
    inner = functors[0]
    if _LAUNCHERS.match(head(inner)):
        inner = (arguments(inner) or [inner])[0]
    what, dtype = _functor(inner)
    how = match["how"] or ""
    vector = f"vec{given[0]}" if how.startswith("vectorized") and given[0].isdigit() else None
    unrolled = "unrolled" if how.startswith("unrolled") else None
    return joined("elementwise", what, dtype, vector or unrolled)


def _distribution(match: Match[str], _plain: str) -> str | None:
    given = arguments(match.string)
    functors = [one for one in given if not _NUMBER.match(one) and not _is_type(one)]
    return joined("elementwise", _functor(functors[0])[0], dtype_in(given[0])) if functors else None


def _reduce(match: Match[str], _plain: str) -> str | None:
    inner = next((one for one in arguments(match.string) if head(one) == "ReduceOp"), "")
    given = arguments(inner)
    if len(given) < 2:
        return None
    operation = given[1]
    if head(operation) == "func_wrapper_t":
        operation = (arguments(operation) or [operation])[-1]
    return joined("reduce", _functor(operation)[0], dtype_in(given[0]))


def _foreach(match: Match[str], _plain: str) -> str | None:
    given = [one for one in arguments(match.string) if "TensorList" not in head(one)]
    functors = [one for one in given if not _NUMBER.match(one) and not _is_type(one)]
    if not functors:
        return None
    names = [_functor(one)[0] for one in functors[:2]]
    return joined("foreach", *names, dtype_in(",".join(arguments(functors[0]))))


def _cat(match: Match[str], _plain: str) -> str | None:
    given = arguments(match.string)
    dims = f"{given[2]}d" if len(given) > 2 and given[2].isdigit() else None
    return joined("cat", dtype_in(given[0]) if given else None, dims)


def _cub(_match: Match[str], plain: str) -> str | None:
    found = _CUB.search(plain)
    if found is None:
        return None
    given = arguments(plain)
    return joined("cub", found[1], dtype_in(",".join(given)) if given else None)


_CUB: Final = late(r"^Device(\w+?)(?:Kernel)?(?=<|$)")

# ------------------------------------------------------------------------- Composable Kernel

_CK_LAYOUT: Final = late(r"tensor_layout::gemm::(Row|Column)Major")
_CK_TILE: Final = late(r"GemmSpecialization\)\d+, \d+, (\d+), (\d+), (\d+)")


def _ck(match: Match[str], _plain: str) -> str | None:
    """``ck::kernel_gemm_xdl_cshuffle_v3<…>``: layouts of A, B and C by row (r) or column (c)."""
    text = match.string
    layouts = "".join(found[1][0].lower() for found in list(_CK_LAYOUT.finditer(text))[:3])
    tile = _CK_TILE.search(text)
    what = match["what"].removeprefix("kernel_")
    dtype = dtype_in(text[match.end() :])
    dtype = "bf16" if dtype == "u16" else dtype  # CK's type of bfloat16 is unsigned short
    return joined("CK", what, dtype, "x".join(tile.groups()) if tile else None, layouts)


def _ck_tile(match: Match[str], _plain: str) -> str | None:
    """``ck_tile::kentry<…, ck_tile::FmhaFwdKernel<…> >``."""
    found = _CK_TILE_NAME.search(match.string[match.end() :])
    if found is None:
        return None
    rest = match.string[match.end() + found.end() :]
    sizes = _SEQUENCE.search(rest)
    tile = sizes[1].replace(", ", "x") if sizes else None
    return joined("CK", found[1].removesuffix("Kernel"), dtype_in(rest, reals=True), tile)


_CK_TILE_NAME: Final = late(r"ck_tile::(\w+)<")
_SEQUENCE: Final = late(r"sequence<(\d+(?:, \d+){0,2})")

# --------------------------------------------------------------------------- mangled C++ names

_MANGLED_SIZES: Final = late(r"8sequenceIJ((?:Li\d+E)+)E")
_MANGLED_SIZE: Final = late(r"Li(\d+)E")
#: The Itanium ABI's codes of types, https://itanium-cxx-abi.github.io/cxx-abi/abi.html#mangling-type.
_MANGLED_TYPE: Final = late(r"DF16b|DF16_|DF16|(?<=[IEL_])f(?=[A-Z])|(?<=[IEL_])d(?=[A-Z])")
_CODES: Final = {"DF16b": "bf16", "DF16_": "f16", "DF16": "f16", "f": "f32", "d": "f64"}


def identifiers(mangled: str) -> list[str]:
    """The identifiers in a mangled name, in order: each is written after its length.

    >>> identifiers("_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdINS_")
    ['ck_tile', 'kentry', 'Rmsnorm2dFwd']
    """
    found, at = [], 0
    while at < len(mangled):
        end = at
        while end < len(mangled) and mangled[end] in "0123456789":
            end += 1
        if end == at:
            at += 1
            continue
        size = int(mangled[at:end]) if end - at < 4 else 0
        literal = at and mangled[at - 1] in "ijlmxybLS"  # a number, such as Li128E, or a reference
        part = mangled[end : end + size]
        if literal or not 1 < size == len(part) or not part.replace("_", "a").isalnum():
            at = end
            continue
        found.append(part)
        at = end + size
    return found


def _mangled(match: Match[str], _plain: str) -> str | None:
    text = match.string
    names = identifiers(text)
    if not names:
        return None
    if names[:2] == ["ck_tile", "kentry"]:
        sizes, code = _MANGLED_SIZES.search(text), _MANGLED_TYPE.search(text)
        tile = "x".join(_MANGLED_SIZE.findall(sizes[1])[:3]) if sizes else None
        name = names[2].removesuffix("Kernel") if len(names) > 2 else None
        return joined("CK", name, _CODES[code[0]] if code else None, tile) if name else None
    own = [name for name in _nested(text) if not name.startswith("_GLOBAL_")]
    return own[-1] if own else None


def _nested(mangled: str) -> list[str]:
    """The identifiers of the name itself, outermost first, without template arguments."""
    found, at = [], len("_ZN") if mangled.startswith("_ZN") else len("_Z")
    while (digits := _DIGITS.match(mangled, at)) and len(digits[0]) < 4:
        at = digits.end() + int(digits[0])
        found.append(mangled[digits.end() : at])
    return [name for name in found if name]


_DIGITS: Final = late(r"[0-9]+")

NATIVE: Final[tuple[tuple[Pattern[str], Make], ...]] = (
    (late(r"^(?P<how>vectorized_|unrolled_|index_)?(?:templated_)?elementwise_kernel\w*(?=<)"),
     _elementwise),
    (late(r"^distribution_elementwise_grid_stride_kernel(?=<)"), _distribution),
    (late(r"^reduce_kernel(?=<)"), _reduce),
    (late(r"^multi_tensor_apply_kernel(?=<)"), _foreach),
    (late(r"^CatArrayBatchedCopy\w*(?=<)"), _cat),
)  # fmt: skip
#: The same, recognized by the full name.
OTHERS: Final[tuple[tuple[Pattern[str], Make], ...]] = (
    (late(r"\bcub::"), _cub),
    (late(r"\bck_tile::kentry<"), _ck_tile),
    (late(r"\bck::(?P<what>kernel_\w+)(?=<)"), _ck),
    (late(r"^_Z"), _mangled),
)
