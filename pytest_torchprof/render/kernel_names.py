"""Readable kernel names: C++ names without boilerplate, and in a few words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from re import Match, Pattern
from typing import Final

from pytest_torchprof.core.process import late
from pytest_torchprof.core.values import CountedNames

# ---- The parts of a C++ template's name: its head, its arguments, the dtype among them.

#: C++ types → dtypes as in the names of other kernels.
_DTYPES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("float", "float32_t"), "f32"),
    **dict.fromkeys(("double", "float64_t"), "f64"),
    **dict.fromkeys(("Half", "half", "__half", "half_t", "_Float16", "float16_t"), "f16"),
    **dict.fromkeys(
        ("BFloat16", "bfloat16", "__nv_bfloat16", "nv_bfloat16", "bfloat16_t", "__hip_bfloat16",
         "hip_bfloat16", "bhalf_t", "__bf16"),
        "bf16",
    ),
    **dict.fromkeys(
        ("Float8_e4m3fn", "Float8_e5m2", "Float8_e4m3fnuz", "Float8_e5m2fnuz", "float_e4m3_t",
         "float_e5m2_t", "__nv_fp8_e4m3", "__nv_fp8_e5m2", "f8_t", "bf8_t"),
        "f8",
    ),
    "float_e2m1_t": "f4",
    "tfloat32_t": "tf32",
    "complex<float>": "c64",
    "complex<double>": "c128",
    **dict.fromkeys(("long", "long long", "int64_t"), "i64"),
    **dict.fromkeys(("int", "int32_t"), "i32"),
    **dict.fromkeys(("short", "int16_t"), "i16"),
    **dict.fromkeys(("signed char", "int8_t"), "i8"),
    **dict.fromkeys(("unsigned char", "uint8_t"), "u8"),
    **dict.fromkeys(("unsigned short", "uint16_t"), "u16"),
    **dict.fromkeys(("unsigned int", "uint32_t"), "u32"),
    **dict.fromkeys(("unsigned long", "unsigned long long", "uint64_t"), "u64"),
    "bool": "bool",
}  # fmt: skip
_INTEGERS: Final = frozenset({"i64", "i32", "i16", "u16", "u32", "u64", "bool"})
_TYPE: Final = late(
    r"(?<!\w)(?:OpaqueType<(?P<size>\d+)u?>|(?P<type>"
    + "|".join(sorted(map(str, _DTYPES), key=len, reverse=True))
    + r"))(?!\w)"
)
_OPEN, _CLOSE = "<({[", ">)}]"


def head(text: str) -> str:
    """What stands before the first bracket.

    >>> head("reduce_kernel<512, 1>"), head("sqrt_kernel_cuda(float)"), head("plain")
    ('reduce_kernel', 'sqrt_kernel_cuda', 'plain')
    """
    ends = [at for at in map(text.find, "<(") if at >= 0]
    return text[: min(ends)].strip() if ends else text.strip()


def arguments(text: str) -> list[str]:
    """The arguments of the first template in a text; none if it has no template.

    >>> arguments("kernel<4, Add<float, int>, std::array<char*, 3ul> >(int)")
    ['4', 'Add<float, int>', 'std::array<char*, 3ul>']
    """
    start = text.find("<")
    if start < 0:
        return []
    found, depth, since = [], 0, start + 1
    for at in range(start, len(text)):
        sign = text[at]
        if sign in _OPEN:
            depth += 1
        elif sign in _CLOSE and text[at - 1] != "-":
            depth -= 1
            if not depth:
                found.append(text[since:at].strip())
                return [part for part in found if part]
        elif sign == "," and depth == 1:
            found.append(text[since:at].strip())
            since = at + 1
    return []


def dtype_in(text: str, *, reals: bool = False) -> str | None:
    """The first type in a text; ``reals``: rather the first that is not a whole number.

    >>> dtype_in("int, at::Half"), dtype_in("int, at::Half", reals=True), dtype_in("OpaqueType<2u>")
    ('i32', 'f16', '2B')
    """
    first = None
    for match in _TYPE.finditer(text):
        dtype = f"{match['size']}B" if match["size"] else _DTYPES[match["type"]]
        if not reals or dtype not in _INTEGERS:
            return dtype
        first = first or dtype
    return first


# ---- Short names of kernels of known libraries: what they compute, dtype, tile, layout.
#
# Each family is a row: how to recognize a name, and what to make of it. The parts of a name are
# those of the libraries' own naming schemes: CUTLASS's and cuBLAS's
# ``…gemm_bf16_128x256_32x3_tn`` (tile of M and N, then K and stages, then the layouts of A and B:
# n for column-major, t for transposed), Tensile's ``Cijk_Ailk_Bljk_…_MT128x128x32`` (indices of
# C, A and B, then the macro tile), and the template arguments of the others.

#: A recognized name → the short one, if there is one.
Make = Callable[["Match[str]"], "str | None"]

#: A dtype among the words of a name → as torch's users write it.
_WORDS: Final[Mapping[str, str]] = {
    **{word: word for word in ("bf16", "f16", "tf32", "f32", "f64", "f8", "i8", "u8", "i4")},
    "fp16": "f16",
    "fp32": "f32",
    "fp64": "f64",
    "fp8": "f8",
    "int8": "i8",
    "s8": "i8",
    "e4m3": "f8",
    "e5m2": "f8",
    "e2m1": "f4",
    "h": "f16",
    "bfloat16": "bf16",
    "half": "f16",
}
#: The letters before a product's name, as in BLAS, of kernels without such a word.
_LETTERS: Final[Mapping[str, str]] = {
    "s": "f32", "d": "f64", "h": "f16", "c": "c64", "z": "c128", "gc": "c64", "gz": "c128",
    "i": "i8",
}  # fmt: skip
_WORD: Final = late(
    r"(?:^|_)(bf16|tf32|fp16|fp32|fp64|fp8|f16|f32|f64|int8|i8|s8|u8|e4m3|e5m2|e2m1)(?=_|[a-z]\w*?_|$)"
)
_PRODUCT: Final = late(r"(?:^|_)([a-z]{0,2}?)(\d[\dx]*)?(gemm|fprop|dgrad|wgrad|scudnn)(?![a-z])")
_TILE: Final = late(r"_(\d+x\d+)(?:_(\d+)x\d+(?=_|$))?")
_TILE_3: Final = late(r"_(\d+x\d+x\d+)(?=_)")
_STAGES: Final = late(r"_stages_(\d+)x\d+")
_LAYOUT: Final = late(r"_([nt]{2,3}|nd?hwc|nchw|tnn)(?=_|$)")
_EXTRA: Final = late(
    r"_(relu|gelu|bias|swish|splitK|winograd|sliced\d+x\d+|analytic|grouped)(?=_|$)"
)


def joined(*parts: str | None) -> str:
    """The parts that are known, in order."""
    return " ".join(part for part in parts if part)


def _flat(library: str, text: str, *, simt: bool = False) -> str | None:
    """A name of words joined by ``_``, such as ``…_s16816gemm_relu_bf16_128x64_64x6_tn_align8``."""
    product = _PRODUCT.search(text)
    if product is None:
        return None
    letters, instruction, what = product.groups()
    word = _WORD.search(text)
    dtype = _WORDS[word[1]] if word else _LETTERS.get(letters)
    # The instruction m16n8k8 of single precision computes in TF32.
    if not word and letters == "s" and (instruction or "").startswith("1688") and not simt:
        dtype = "tf32"
    rest = text[product.end() :]
    tile, three, stages = _TILE.search(rest), _TILE_3.search(rest), _STAGES.search(rest)
    size = None
    if three:
        size = three[1]
    elif tile:
        depth = tile[2] or (stages and stages[1])
        size = f"{tile[1]}x{depth}" if depth else tile[1]
    layout = _LAYOUT.search(rest)
    extra = " ".join(dict.fromkeys(found[1] for found in _EXTRA.finditer(rest)))
    what = "conv" if what == "scudnn" else what
    dtype = "f32" if what == "conv" and not word else dtype
    return joined(library, what, dtype, size, layout and layout[1], extra)


def _xmma(match: Match[str]) -> str | None:
    what, types, rest = match["what"], match["types"], match["rest"]
    library = "cublas" if what == "gemm" and "cudnn" not in match.string else "cudnn"
    tile, layout = _XMMA_TILE.search(rest), _XMMA_LAYOUT.search(f"_{rest}")
    extra = " ".join(dict.fromkeys(found[1] for found in _EXTRA.finditer(rest)))
    dtype = _WORDS[types]
    return joined(library, what, dtype, tile and tile[1], layout and layout[1], extra)


_XMMA_TILE: Final = late(r"tilesize(\d+x\d+x\d+)")
_XMMA_LAYOUT: Final = late(r"_([nt]{2}(?=_[nt]_)|nd?hwc|ncd?hw|nchw)")

#: Letters of cuBLAS's newer kernels, for the types of A, B and C.
_NVJET: Final = {"t": "bf16", "h": "f16", "s": "tf32", "q": "f8", "d": "f64", "o": "f4"}
#: Tensile's letters for the type of A. Source: Tensile's DataType.py.
_TENSILE: Final = {
    "S": "f32", "D": "f64", "C": "c64", "Z": "c128", "H": "f16", "B": "bf16", "X": "tf32",
    "I8": "i8", "I": "i32", "F8": "f8", "B8": "f8", "F4": "f4",
}  # fmt: skip
_DIRECTION: Final = {"F": "fwd", "B": "bwd", "fprop": "fwd", "bprop": "bwd"}


def _tensile(match: Match[str]) -> str | None:
    a, b = match["a"], match["b"]
    # A's first index is that of rows unless A is transposed, B's that of the sum.
    layout = ("N" if a[0] == "i" else "T") + ("N" if b[0] == "l" else "T")
    tile = _MACRO_TILE.search(match["rest"])
    return joined("Tensile gemm", _tensile_type(match), tile and tile[1], layout)


def _tensile_type(match: Match[str]) -> str | None:
    types = match["types"] or ""
    return _TENSILE.get(types[:2]) or _TENSILE.get(types[:1])


_MACRO_TILE: Final = late(r"_(MT\d+x\d+x\d+)")


def _cutlass_template(match: Match[str]) -> str | None:
    """CUTLASS 3 and CUTLASS 2, where the template arguments are in the name."""
    text = match.string
    shape = _CUTLASS_SHAPE.search(text)
    if shape is None:
        return None
    tile = "x".join(shape.groups()[:3] if shape[1] else shape.groups()[3:])
    what = _CUTLASS_WHAT.search(text)
    grouped = "grouped" if "Grouped" in text or "GroupProblem" in text else None
    dtype = dtype_in(text[shape.end() :], reals=True)
    return joined("cutlass", what[0].lower() if what else "gemm", dtype, tile, grouped)


#: A tile is larger than a cluster, which has at most 16 blocks.
_CUTLASS_SHAPE: Final = late(
    r"tuple<(?:cute::)?C<(\d{2,})>,\s?(?:cute::)?C<(\d+)>,\s?(?:cute::)?C<(\d{2,})>\s?>"
    r"|GemmShape<(\d+),\s?(\d+),\s?(\d+)>"
)
_CUTLASS_WHAT: Final = late(r"Fprop|Dgrad|Wgrad|fmha", 0)


def _flash(match: Match[str]) -> str | None:
    """``<head dimension, rows of queries, rows of keys, warps, …, dtype>, dropout, causal, …``."""
    given = arguments(match.string[match.start() :])
    traits = arguments(given[0]) if given else []
    if len(traits) < 3:
        return None
    what = match["what"] or match["other"]
    causal = given[1 : 2 if "splitkv" in what else 3][-1:] == ["true"]
    short = what.removeprefix("flash_").replace("_kernel", "")
    short = short.replace("_dq_dk_dv_loop_seqk_parallel", "")
    tile = f"{traits[1]}x{traits[2]}"
    dtype = dtype_in(given[0], reals=True)
    return joined("flash", short, dtype, f"hdim{traits[0]}", tile, "causal" if causal else None)


def _flash_3(match: Match[str]) -> str | None:
    shape = _CUTLASS_SHAPE.search(match.string)
    if shape is None or not shape[1]:
        return None
    m, n, dim = shape.groups()[:3]
    dtype = dtype_in(match.string[shape.end() :], reals=True)
    return joined("flash", match["what"].lower(), dtype, f"hdim{dim}", f"{m}x{n}")


def _cudnn(match: Match[str]) -> str | None:
    plain = readable_kernel(match.string)
    name = head(plain).removesuffix("Kernel").removesuffix("_kernel")
    return joined("cudnn", name, dtype_in(",".join(arguments(plain)))) if name else None


def _gemv(match: Match[str]) -> str | None:
    text = match.string[match.end("what") :]
    operands = _OPERAND.search(text)
    dtype = dtype_in(operands[1] if operands else text, reals=True)
    layout = _GEMV_LAYOUT.search(match["what"])  # that of gemv2T is in its name
    what = _GEMV_NAMES.get(match["what"]) or match["what"].partition("_")[0].partition("::")[0]
    return joined("cublas", what, dtype, layout and layout[1])


_OPERAND: Final = late(r"cublasGemv\w*<([\w:]+)(?: const)?>")
_GEMV_LAYOUT: Final = late(r"(?<=_)([NT]{2})(?=_)")
_GEMV_NAMES: Final = {
    "splitKreduce_kernel": "split sum",
    "dot_kernel": "dot",
    "reduce_1Block_kernel": "dot sum",
    "globalKernel": "epilogue",
}


FAMILIES: Final[tuple[tuple[Pattern[str], Make], ...]] = (
    (late(r"\bcutlass(?:3x)?(?:_sm)?_?\d*_(?:\w+?_)??(?P<unit>tensorop|simt)(?P<rest>_\w+)"),
     lambda m: _flat("cutlass", m["rest"], simt=m["unit"] == "simt")),
    (late(r"^(?:cudnn_)?(?:maxwell|pascal|volta|turing|ampere|ada|hopper|blackwell|sm\d+)_(?!xmma)"
          r"(?P<rest>\w+)"),
     lambda m: _flat("cudnn" if "cudnn" in m.string else "cublas", f"_{m['rest']}")),
    (late(r"\bsm\d+_xmma_(?P<what>gemm|fprop|dgrad|wgrad)\w*?_(?P<types>bf16|tf32|f16|f32|f64|e4m3"
          r"|e5m2|i8)(?P<rest>[a-z0-9]*_\w+)"),
     _xmma),
    (late(r"^nvjet_(?:sm\d+_)?(?P<types>[a-z]{2,5})_(?:mma_)?(?P<tile>\d+x\d+)_(?P<depth>\d+)x\d+_\w*?"
          r"(?P<layout>[NT]{3})"),
     lambda m: joined("nvjet gemm", _NVJET.get(m["types"][0]), f"{m['tile']}x{m['depth']}",
                      m["layout"])),
    (late(r"Cijk_A(?P<a>[a-z]{3,4})_B(?P<b>[a-z]{3,4})_(?P<types>[A-Z][A-Z0-9]*)?(?P<rest>\w*)"),
     _tensile),
    (late(r"Cijk_(?P<types>[A-Z][A-Z0-9]*)_?\w*PostGSU"),
     lambda m: joined("Tensile split sum", _tensile_type(m))),
    (late(r"flash::(?P<what>flash_\w+)(?=<)|^(?:void )?(?P<other>flash_(?:fwd|bwd)\w*)(?=<)"),
     _flash),
    (late(r"FlashAttn(?P<what>Fwd|Bwd)Sm\d+"), _flash_3),
    (late(r"fmha_cutlass(?P<way>[FB])_(?P<type>[a-z]+\d+)_\w*?(?P<tile>\d+x\d+)"),
     lambda m: joined("cutlass fmha", _DIRECTION[m["way"]], _WORDS.get(m["type"]), m["tile"])),
    (late(r"cudnn_generated_\w*sdpa_\w*?(?P<way>fprop|bprop)_\w*?(?P<type>bf16|f16|e4m3|e5m2)"
          r"_\w*?(?P<tile>\d+x\d+x\d+)"),
     lambda m: joined("cudnn sdpa", _DIRECTION[m["way"]], _WORDS.get(m["type"]), m["tile"])),
    (late(r"\bcutlass::(?:device_kernel|Kernel2?)<"), _cutlass_template),
    (late(r"(?<![\w>])(?P<what>gemmSN_[NT]{2}_kernel|gemmk1_kernel|gemv\w*?(?=<|::)|dot_kernel"
          r"|reduce_1Block_kernel|splitKreduce_kernel|(?<=epilogue::impl::)globalKernel)"),
     _gemv),
    (late(r"^(?:void )?(?:\w*cudnn\w*::|(?:im|ex)plicit_convolve|precomputed_convolve|fft[12]d_"
          r"|(?:\w+::)*winograd)"),
     _cudnn),
    (late(r"^_?(?P<what>(?:p_)?matmul_ogs)_(?P<layout>[NT]{3})_(?P<types>\w+?)_"
          r"(?P<tile>\d+x\d+x\d+)x\d+(?:_(?P<extra>\w+))?$"),
     # Of triton_kernels: _matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu.
     lambda m: joined("triton", m["what"], m["types"], m["tile"], m["layout"], m["extra"])),
    # Triton 2 appended the arguments that it specialized for: 0d1d2d3de4. Where nothing else tells
    # kernels apart, that stays.
    (late(r"^(?!_*triton_*0)(?P<name>\w*[a-z])_+0d?c?1[dce\d]*$"), lambda m: m["name"]),
)  # fmt: skip


# ---- Short names of torch's own kernels, of CUB's, and of Composable Kernel's.

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


def _functors(given: Sequence[str]) -> list[str]:
    return [one for one in given if not _NUMBER.match(one) and dtype_in(head(one)) is None]


def _elementwise(match: Match[str]) -> str | None:
    given = arguments(match.string)
    functors = _functors(given)
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


def _distribution(match: Match[str]) -> str | None:
    given = arguments(match.string)
    functors = _functors(given)
    return joined("elementwise", _functor(functors[0])[0], dtype_in(given[0])) if functors else None


def _reduce(match: Match[str]) -> str | None:
    inner = next((one for one in arguments(match.string) if head(one) == "ReduceOp"), "")
    given = arguments(inner)
    if len(given) < 2:
        return None
    operation = given[1]
    if head(operation) == "func_wrapper_t":
        operation = (arguments(operation) or [operation])[-1]
    return joined("reduce", _functor(operation)[0], dtype_in(given[0]))


def _foreach(match: Match[str]) -> str | None:
    given = [one for one in arguments(match.string) if "TensorList" not in head(one)]
    functors = _functors(given)
    if not functors:
        return None
    names = [_functor(one)[0] for one in functors[:2]]
    return joined("foreach", *names, dtype_in(",".join(arguments(functors[0]))))


def _cat(match: Match[str]) -> str | None:
    given = arguments(match.string)
    dims = f"{given[2]}d" if len(given) > 2 and given[2].isdigit() else None
    return joined("cat", dtype_in(given[0]) if given else None, dims)


def _cub(match: Match[str]) -> str | None:
    plain = readable_kernel(match.string)
    found = _CUB.search(plain)
    return found and joined("cub", found[1], dtype_in(",".join(arguments(plain))))


_CUB: Final = late(r"^Device(\w+?)(?:Kernel)?(?=<|$)")

# ------------------------------------------------------------------------- Composable Kernel

_CK_LAYOUT: Final = late(r"tensor_layout::gemm::(Row|Column)Major")
_CK_TILE: Final = late(r"GemmSpecialization\)\d+, \d+, (\d+), (\d+), (\d+)")


def _ck(match: Match[str]) -> str | None:
    """``ck::kernel_gemm_xdl_cshuffle_v3<…>``: layouts of A, B and C by row (r) or column (c)."""
    text = match.string
    layouts = "".join(found[1][0].lower() for found in list(_CK_LAYOUT.finditer(text))[:3])
    tile = _CK_TILE.search(text)
    what = match["what"].removeprefix("kernel_")
    dtype = dtype_in(text[match.end() :])
    dtype = "bf16" if dtype == "u16" else dtype  # CK's type of bfloat16 is unsigned short
    return joined("CK", what, dtype, "x".join(tile.groups()) if tile else None, layouts)


def _ck_tile(match: Match[str]) -> str | None:
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


def _mangled(match: Match[str]) -> str | None:
    text = match.string
    if found := _MANGLED_CK.match(text):
        sizes, code = _MANGLED_SIZES.search(text), _MANGLED_TYPE.search(text)
        tile = "x".join(_MANGLED_SIZE.findall(sizes[1])[:3]) if sizes else None
        what = text[found.end() : found.end() + int(found[1])].removesuffix("Kernel")
        return joined("CK", what, _CODES[code[0]] if code else None, tile) if what else None
    # The last of the nested identifiers, each of which is written after its length.
    name: str | None = None
    at = len("_ZN") if text.startswith("_ZN") else len("_Z")
    while digits := _DIGITS.match(text, at):
        at = digits.end() + int(digits[0])
        part = text[digits.end() : at]
        name = part if part and not part.startswith("_GLOBAL_") else name
    return name


_MANGLED_CK: Final = late(r"_ZN7ck_tile6kentryI\w*?NS_([0-9]{1,3})")
_DIGITS: Final = late(r"[0-9]{1,3}(?![0-9])")

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

_ANONYMOUS = re.compile(r"\(anonymous namespace\)::")
#: An element-wise functor is a nested lambda; the function's name and the type identify it.
_LAMBDAS = re.compile(
    r"\([^(){}]*\)(?: const)?"
    r"(?:::\{lambda\([^{}]*?\)#\d+\}(?:::operator\(\)\([^(){}]*\)(?: const)?)?)*"
    r"::\{lambda\((?P<types>[^{}]*?)\)#\d+\}"
)
_NAMESPACES = re.compile(r"(?<![\w>])(?:[A-Za-z_]\w*::)+(?=[A-Za-z_])")
#: Template arguments about operand access, which say nothing about the computation.
_PLUMBING = re.compile(
    r",?\s*\b(?:(?:[Aa]rray<char\s?\*, ?\d+(?:ul)?>)|TrivialOffsetCalculator<[^<>]*>"
    r"|OffsetCalculator<[^<>]*>|(?:Load|Store)With(?:out)?Cast(?:<[^<>]*>)?)"
)
_OPERATORS = re.compile(r"operator\s?\(\)")


def readable_kernel(name: str) -> str:
    """A kernel's name without return type, arguments, namespaces and template noise.

    Names from other languages (Triton, assembly) stay as they are.

    >>> readable_kernel("void at::native::vectorized_elementwise_kernel<4, "
    ...     "at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >"
    ...     "(int, at::native::CUDAFunctor_add<float>)")
    'vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>'
    >>> readable_kernel("triton_poi_fused__to_copy_1")
    'triton_poi_fused__to_copy_1'
    """
    if "::" not in name and not name.endswith(")"):
        plain = name.removeprefix("void ")
        return plain.strip() or plain
    text = _ANONYMOUS.sub("", name.removesuffix(".kd").removeprefix("void "))
    text = _without_arguments(text)
    text = _LAMBDAS.sub(lambda match: f"({match['types']})" if match["types"] else "", text)
    text = _OPERATORS.sub("operator", text)
    text = _PLUMBING.sub("", _NAMESPACES.sub("", text))
    text = re.sub(r"\s+>", ">", text)
    return re.sub(r"<\s*,?\s*>", "", text).strip() or name


def _without_arguments(text: str) -> str:
    """Remove a trailing argument list, if any; a remark may follow after a space."""
    if not text.endswith(")"):
        return text
    depth = 0
    for at in range(len(text) - 1, -1, -1):
        depth += (text[at] == ")") - (text[at] == "(")
        if not depth:
            return text if text[:at].endswith((" ", ",")) else text[:at] or text
    return text


@lru_cache(maxsize=10_000)
def short_kernel(name: str) -> str:
    """What a kernel computes in a few words: library, operation, dtype, tile, layout.

    Names that no known library writes become `readable_kernel`; those of Triton's kernels stay, as
    they are the names in the generated code.

    >>> short_kernel("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_"
    ...     "64x6_tn_align8>(cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x6_tn_align8)")
    'cutlass gemm bf16 128x64x64 tn relu'
    >>> short_kernel("Cijk_Ailk_Bjlk_HHS_BH_Bias_MT128x128x32_MI32x32x8x1_SN")
    'Tensile gemm f16 MT128x128x32 NT'
    >>> short_kernel("void at::native::vectorized_elementwise_kernel<4, "
    ...     "at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >"
    ...     "(int, at::native::CUDAFunctor_add<float>)")
    'elementwise add f32 vec4'
    """
    plain = readable_kernel(name)
    for text, families in ((plain, NATIVE), (name, (*OTHERS, *FAMILIES))):
        for pattern, make in families:
            if (match := pattern.search(text)) and (short := make(match)):
                return short
    return plain


def short_kernels(text: str) -> str:
    """The same for each of `CountedNames`."""
    return text.renamed(short_kernel) if isinstance(text, CountedNames) else short_kernel(text)
