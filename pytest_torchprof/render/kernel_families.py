"""Short names of kernels of known libraries: what they compute, dtype, tile, layout.

Each family is a row: how to recognize a name, and what to make of it. The parts of a name are those
of the libraries' own naming schemes: CUTLASS's and cuBLAS's ``…gemm_bf16_128x256_32x3_tn`` (tile of
M and N, then K and stages, then the layouts of A and B: n for column-major, t for transposed),
Tensile's ``Cijk_Ailk_Bljk_…_MT128x128x32`` (indices of C, A and B, then the macro tile), and the
template arguments of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from re import Match, Pattern
from typing import Final

from pytest_torchprof.core.lazy_regex import late
from pytest_torchprof.render.template_arguments import arguments, dtype_in, head

#: A recognized name, and the same without namespaces and noise → the short one, if there is one.
Make = Callable[["Match[str]", str], "str | None"]

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


def _cutlass(match: Match[str], _plain: str) -> str | None:
    return _flat("cutlass", match["rest"], simt=match["unit"] == "simt")


def _cublas(match: Match[str], _plain: str) -> str | None:
    text = match["rest"]
    return _flat("cudnn" if "cudnn" in match.string else "cublas", f"_{text}")


def _xmma(match: Match[str], _plain: str) -> str | None:
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


def _nvjet(match: Match[str], _plain: str) -> str | None:
    tile = f"{match['tile']}x{match['depth']}"
    return joined("nvjet gemm", _NVJET.get(match["types"][0]), tile, match["layout"])


#: Tensile's letters for the type of A. Source: Tensile's DataType.py.
_TENSILE: Final = {
    "S": "f32", "D": "f64", "C": "c64", "Z": "c128", "H": "f16", "B": "bf16", "X": "tf32",
    "I8": "i8", "I": "i32", "F8": "f8", "B8": "f8", "F4": "f4",
}  # fmt: skip


def _tensile(match: Match[str], _plain: str) -> str | None:
    a, b, types = match["a"], match["b"], match["types"] or ""
    # A's first index is that of rows unless A is transposed, B's that of the sum.
    layout = ("N" if a[0] == "i" else "T") + ("N" if b[0] == "l" else "T")
    dtype = _TENSILE.get(types[:2]) or _TENSILE.get(types[:1])
    tile = _MACRO_TILE.search(match["rest"])
    return joined("Tensile gemm", dtype, tile and tile[1], layout)


_MACRO_TILE: Final = late(r"_(MT\d+x\d+x\d+)")


def _tensile_sum(match: Match[str], _plain: str) -> str | None:
    dtype = _TENSILE.get(match["types"][:2]) or _TENSILE.get(match["types"][:1])
    return joined("Tensile split sum", dtype)


def _cutlass_template(match: Match[str], _plain: str) -> str | None:
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


def _flash(match: Match[str], _plain: str) -> str | None:
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


def _flash_3(match: Match[str], _plain: str) -> str | None:
    shape = _CUTLASS_SHAPE.search(match.string)
    if shape is None or not shape[1]:
        return None
    m, n, dim = shape.groups()[:3]
    dtype = dtype_in(match.string[shape.end() :], reals=True)
    return joined("flash", match["what"].lower(), dtype, f"hdim{dim}", f"{m}x{n}")


def _fmha(match: Match[str], _plain: str) -> str | None:
    direction = {"F": "fwd", "B": "bwd"}[match["direction"]]
    return joined("cutlass fmha", direction, _WORDS.get(match["type"]), match["tile"])


def _cudnn_sdpa(match: Match[str], _plain: str) -> str | None:
    direction = {"fprop": "fwd", "bprop": "bwd"}[match["direction"]]
    return joined("cudnn sdpa", direction, _WORDS.get(match["type"]), match["tile"])


def _cudnn(_match: Match[str], plain: str) -> str | None:
    name = head(plain).removesuffix("Kernel").removesuffix("_kernel")
    return joined("cudnn", name, dtype_in(",".join(arguments(plain)))) if name else None


def _gemv(match: Match[str], _plain: str) -> str | None:
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


def _triton(match: Match[str], _plain: str) -> str | None:
    """``_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu`` of triton_kernels."""
    return joined(
        "triton", match["what"], match["types"], match["tile"], match["layout"], match["extra"]
    )


def _signed(match: Match[str], _plain: str) -> str | None:
    """Triton 2 appended the arguments that it specialized for: ``0d1d2d3de4``.

    Where nothing else tells kernels apart, that stays.
    """
    return match["name"] if match["name"].strip("_") != "triton" else None


FAMILIES: Final[tuple[tuple[Pattern[str], Make], ...]] = (
    (late(r"\bcutlass(?:3x)?(?:_sm)?_?\d*_(?:\w+?_)??(?P<unit>tensorop|simt)(?P<rest>_\w+)"),
     _cutlass),
    (late(r"^(?:cudnn_)?(?:maxwell|pascal|volta|turing|ampere|ada|hopper|blackwell|sm\d+)_(?!xmma)"
          r"(?P<rest>\w+)"),
     _cublas),
    (late(r"\bsm\d+_xmma_(?P<what>gemm|fprop|dgrad|wgrad)\w*?_(?P<types>bf16|tf32|f16|f32|f64|e4m3"
          r"|e5m2|i8)(?P<rest>[a-z0-9]*_\w+)"),
     _xmma),
    (late(r"^nvjet_(?:sm\d+_)?(?P<types>[a-z]{2,5})_(?:mma_)?(?P<tile>\d+x\d+)_(?P<depth>\d+)x\d+_\w*?"
          r"(?P<layout>[NT]{3})"),
     _nvjet),
    (late(r"Cijk_A(?P<a>[a-z]{3,4})_B(?P<b>[a-z]{3,4})_(?P<types>[A-Z][A-Z0-9]*)?(?P<rest>\w*)"),
     _tensile),
    (late(r"Cijk_(?P<types>[A-Z][A-Z0-9]*)_?\w*PostGSU"), _tensile_sum),
    (late(r"flash::(?P<what>flash_\w+)(?=<)|^(?:void )?(?P<other>flash_(?:fwd|bwd)\w*)(?=<)"),
     _flash),
    (late(r"FlashAttn(?P<what>Fwd|Bwd)Sm\d+"), _flash_3),
    (late(r"fmha_cutlass(?P<direction>[FB])_(?P<type>[a-z]+\d+)_\w*?(?P<tile>\d+x\d+)"), _fmha),
    (late(r"cudnn_generated_\w*sdpa_\w*?(?P<direction>fprop|bprop)_\w*?(?P<type>bf16|f16|e4m3|e5m2)"
          r"_\w*?(?P<tile>\d+x\d+x\d+)"),
     _cudnn_sdpa),
    (late(r"\bcutlass::(?:device_kernel|Kernel2?)<"), _cutlass_template),
    (late(r"(?<![\w>])(?P<what>gemmSN_[NT]{2}_kernel|gemmk1_kernel|gemv\w*?(?=<|::)|dot_kernel"
          r"|reduce_1Block_kernel|splitKreduce_kernel|(?<=epilogue::impl::)globalKernel)"),
     _gemv),
    (late(r"^(?:void )?(?:\w*cudnn\w*::|(?:im|ex)plicit_convolve|precomputed_convolve|fft[12]d_"
          r"|(?:\w+::)*winograd)"),
     _cudnn),
    (late(r"^_?(?P<what>(?:p_)?matmul_ogs)_(?P<layout>[NT]{3})_(?P<types>\w+?)_"
          r"(?P<tile>\d+x\d+x\d+)x\d+(?:_(?P<extra>\w+))?$"),
     _triton),
    (late(r"^(?P<name>\w*[a-z])_+0d?c?1[dce\d]*$"), _signed),
)  # fmt: skip
