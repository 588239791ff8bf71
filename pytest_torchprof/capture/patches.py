"""What tests may replace: originals bound early, and a guard that puts them back meanwhile."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from gc import get_referents
from operator import itemgetter
from types import MappingProxyType, ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pytest_torchprof.capture.limits import Undo


# ---- Names that our code uses, directly or through libraries, and tests may patch: see
# `PatchGuard`.
#
# A ``*`` stands for everything callable, ``Class.*`` for all methods of a class. Names that a
# version of Python or of a library lacks are skipped. A test that replaces everything our code
# calls, one name after the other, finds what is missing here. Included are also values that our
# code reads: flags, the name of the system, the folder for temporary files.

#: Module → names; names with a dot are of a class.
NAMES = {
    "builtins": "*",
    "sys": (
        "_getframe addaudithook audit exc_info exception getprofile getrecursionlimit gettrace"
        " getswitchinterval intern meta_path modules path_hooks path_importer_cache"
        " setprofile setrecursionlimit settrace platform"
    ),
    "gc": "*",
    "time": "*",
    "signal": (
        "getsignal setitimer signal sigpending Handlers Signals _enum_to_int _int_to_enum alarm"
        " ITIMER_REAL SIGALRM SIGTERM SIG_DFL"
    ),
    "_signal": "alarm getitimer getsignal setitimer signal sigpending",
    "threading": (
        "Condition Condition.* Event Event.* Lock RLock Thread Thread.__init__ Thread.daemon"
        " Thread.ident Thread.is_alive Thread.join Thread.start Thread._wait_for_tstate_lock"
        " Timer _active _allocate_lock _limbo _make_invoke_excepthook _newname active_count"
        " current_thread enumerate get_ident get_native_id main_thread"
        " _start_new_thread _start_joinable_thread"
    ),
    "_thread": "LockType RLock allocate_lock get_ident start_joinable_thread start_new_thread",
    "os": (
        "PathLike _Environ _Environ.* _exit access chdir close cpu_count dup dup2 environ fdopen"
        " fork fsdecode fsencode fspath fstat get_terminal_size getcwd getenv getpid getppid"
        " kill link listdir lstat makedirs mkdir open path pipe putenv read readlink remove rename"
        " replace rmdir scandir sched_getaffinity sched_setaffinity stat sysconf times umask unlink"
        " unsetenv urandom"
        " utime waitpid walk write"
        " O_CREAT O_EXCL O_RDONLY O_WRONLY P_ALL WEXITED WNOHANG WNOWAIT devnull name sep"
    ),
    "posix": (
        "_path_normpath chdir close cpu_count dup dup2 fspath fstat getcwd getpid listdir lstat"
        " mkdir open putenv replace rmdir scandir stat sysconf times unlink unsetenv urandom"
    ),
    "posixpath": "*",
    "genericpath": "*",
    "io": "*",
    "_io": "BytesIO FileIO StringIO TextIOWrapper open",
    "codecs": (
        "BufferedIncrementalDecoder.__init__ BufferedIncrementalDecoder.decode"
        " IncrementalDecoder.__init__ IncrementalEncoder.__init__ getincrementaldecoder"
        " getincrementalencoder lookup open ascii_decode utf_8_decode"
    ),
    "random": (
        "Random Random.__init__ Random.choices Random.getstate Random.randrange Random.sample"
        " Random.seed Random.setstate Random.shuffle Random._randbelow"
        " Random._randbelow_with_getrandbits choice"
        " SystemRandom SystemRandom.* choices getrandbits getstate randint random sample seed"
        " setstate shuffle uniform _bisect _floor _index _inst _isfinite _urandom"
    ),
    "re": "*",
    "re._compiler": "compile isstring _code _compile _compile_info",
    "re._parser": "parse parse_template SubPattern Tokenizer State",
    "_sre": "compile",
    "contextlib": (
        "* ExitStack.* _BaseExitStack.* _GeneratorContextManager.* _GeneratorContextManagerBase.*"
        " nullcontext.* redirect_stdout.* suppress.* closing.* ContextDecorator.*"
    ),
    "collections": (
        "Counter Counter.* OrderedDict UserDict _count_elements defaultdict deque namedtuple"
    ),
    "_collections": "_count_elements defaultdict deque",
    "collections.abc": "Mapping.* MutableMapping.* MappingView.* KeysView.* ItemsView.*",
    "functools": (
        "cached_property cached_property.__get__ cmp_to_key lru_cache namedtuple partial reduce"
        " update_wrapper wraps"
    ),
    "itertools": "accumulate chain count groupby islice repeat zip_longest",
    "operator": "attrgetter ge gt index itemgetter le lt methodcaller or_",
    "dataclasses": (
        "asdict astuple fields is_dataclass replace _asdict_inner _is_dataclass_instance"
    ),
    "copy": "*",
    "types": "ModuleType SimpleNamespace MappingProxyType new_class",
    "enum": "EnumMeta.* Enum.__hash__ Enum.__new__ Flag.__and__ property.__get__ _is_dunder",
    "abc": "ABCMeta.* _abc_instancecheck _abc_subclasscheck",
    "warnings": "catch_warnings catch_warnings.*",
    "weakref": "WeakKeyDictionary WeakMethod WeakSet WeakValueDictionary finalize proxy ref",
    "_weakrefset": "WeakSet.add WeakSet.__init__ WeakSet.__iter__",
    "bisect": "*",
    "math": (
        "ceil comb exp floor fsum gcd inf isclose isfinite isinf isnan log log1p log2 log10 prod"
        " sqrt"
    ),
    "fractions": "Fraction",
    "statistics": "NormalDist NormalDist.* median _normal_dist_inv_cdf",
    "mmap": "mmap",
    "json": "dumps loads dump load JSONEncoder JSONDecoder",
    "json.encoder": "JSONEncoder.* encode_basestring_ascii c_make_encoder _make_iterencode",
    "json.decoder": "JSONDecoder.*",
    "gzip": "GzipFile GzipFile.* open write32u compress decompress",
    "_compression": "BaseStream.*",
    "zlib": "compress compressobj crc32 decompress decompressobj",
    "struct": "Struct calcsize pack unpack",
    "marshal": "loads",
    "array": "array",
    "ctypes": "CDLL CFUNCTYPE c_int c_uint64 c_void_p cast py_object string_at _string_at",
    "hashlib": "md5 sha1 sha256 blake2b new",
    "uuid": "UUID UUID.__init__ uuid1 uuid4",
    "string": "Formatter Template",
    "textwrap": "dedent fill indent shorten wrap",
    "secrets": "choice token_bytes token_hex token_urlsafe",
    "hmac": "compare_digest new",
    "base64": "b64decode b64encode",
    "binascii": "hexlify unhexlify",
    "fcntl": "fcntl flock lockf",
    "html": "escape unescape",
    "shlex": "_find_unsafe join quote split",
    "shutil": "_rmtree_safe_fd copy copy2 copyfile copyfileobj get_terminal_size move rmtree which",
    "tempfile": (
        "NamedTemporaryFile TemporaryDirectory _RandomNameSequence.__next__ _get_candidate_names"
        " _gettempdir _infer_return_type _sanitize_params gettempdir mkdtemp mkstemp tempdir"
    ),
    "pathlib": (
        "Path PosixPath PurePath PurePosixPath Path.* PurePath.* _ignore_error _is_wildcard_pattern"
    ),
    "fnmatch": "filter fnmatch fnmatchcase translate",
    "glob": "glob iglob",
    "stat": "S_ISDIR S_ISREG S_ISLNK S_IMODE",
    "resource": "getrusage getrlimit getpagesize RUSAGE_SELF",
    "faulthandler": "cancel_dump_traceback_later dump_traceback dump_traceback_later",
    "linecache": "checkcache getline getlines updatecache",
    "traceback": "extract_stack extract_tb format_exception format_tb",
    "ast": (
        "NodeTransformer.generic_visit NodeVisitor.generic_visit NodeVisitor.visit"
        " NodeVisitor.visit_Constant get_source_segment iter_child_nodes iter_fields literal_eval"
        " parse unparse walk"
    ),
    "tokenize": "detect_encoding generate_tokens open tokenize _tokenize _builtin_open",
    "inspect": (
        "Parameter Signature cleandoc currentframe get_annotations getfile getsource"
        " getsourcefile getsourcelines isbuiltin isclass isfunction signature stack unwrap"
    ),
    "keyword": "iskeyword",
    "typing": (
        "get_origin get_args get_type_hints cast _type_check _type_convert _GenericAlias.*"
        " _SpecialForm.* TypeVar.__typing_subst__ _collect_parameters _deduplicate"
    ),
    "logging": (
        "Filterer.addFilter Filterer.removeFilter Filterer.__init__ Logger.__init__"
        " Manager.getLogger Manager._fixupParents getLogger _acquireLock _releaseLock _checkLevel"
    ),
    "importlib": "import_module reload",
    "importlib.util": "find_spec module_from_spec spec_from_file_location",
    "importlib._bootstrap": (
        "_call_with_frames_removed _find_and_load _find_and_load_unlocked _find_spec"
        " _get_module_lock _handle_fromlist _init_module_attrs _load_unlocked"
        " _lock_unlock_module _new_module _verbose_message module_from_spec"
    ),
    "importlib.metadata": "distribution distributions entry_points metadata version",
    "platform": "machine processor python_version system",
    "email": "message_from_string",
    "msgspec": "convert to_builtins field",
    "msgspec.json": "decode encode Decoder Encoder",
    "tabulate": "tabulate _align_column _column_type _format _normalize_tabular_data _type",
    "numpy": (
        "all any append arange argmax argmin argsort array array_equal array_split asanyarray"
        " asarray ascontiguousarray bincount broadcast_to cbrt ceil clip concatenate copyto"
        " count_nonzero cumsum diff dtype empty empty_like errstate errstate.* finfo finfo.*"
        " flatnonzero floor frombuffer fromiter full full_like hstack iinfo iinfo.* insert isfinite"
        " isin isnan issubdtype iterable lexsort log max maximum mean median min minimum ndarray"
        " nonzero ones ones_like percentile prod quantile ravel repeat round searchsorted sort"
        " split sqrt stack sum swapaxes unique vstack where zeros zeros_like"
        " bool bool_ float32 float64 int16 int32 int64 int8 integer number random single uint16"
        " uint32 uint64 uint8"
    ),
    "numpy._core.fromnumeric": (
        "_wrapfunc _wrapreduction _wrapreduction_any_all any argmax argsort cumsum max min nonzero"
        " ravel searchsorted sort sum swapaxes asarray asanyarray _sum_ _any_dispatcher"
        " _argmax_dispatcher _argsort_dispatcher _cumsum_dispatcher _max_dispatcher"
        " _min_dispatcher _nonzero_dispatcher _ravel_dispatcher _searchsorted_dispatcher"
        " _sort_dispatcher _swapaxes_dispatcher"
    ),
    "numpy._core._methods": (
        "_all _amax _amin _any _count_reduce_items _sum umr_all umr_any umr_maximum umr_minimum"
        " umr_sum asanyarray"
    ),
    "numpy._core.numeric": (
        "arange array asanyarray asarray count_nonzero empty flatnonzero full ones zeros"
        " zeros_like normalize_axis_index issubdtype _flatnonzero_dispatcher"
        " _zeros_like_dispatcher"
    ),
    "numpy._core.numerictypes": "issubclass_ issubdtype obj2sctype",
    "numpy._core.multiarray": (
        "arange array asanyarray asarray bincount concatenate count_nonzero copyto empty"
        " empty_like frombuffer fromiter lexsort normalize_axis_index where zeros"
    ),
    "numpy._core.shape_base": (
        "_arrays_for_stack_dispatcher _stack_dispatcher stack array asanyarray normalize_axis_index"
    ),
    "numpy._core._ufunc_config": "_extobj_contextvar _make_extobj errstate errstate.*",
    "numpy._core.getlimits": "finfo.* iinfo.*",
    "numpy.lib._arraysetops_impl": (
        "_isin _isin_dispatcher _unique1d _unique_dispatcher _unique_hash _unpack_tuple isin"
        " normalize_axis_index unique"
    ),
    "numpy.lib._function_base_impl": (
        "_get_gamma _get_indexes _lerp _quantile _quantile_is_valid _quantile_unchecked"
        " _quantile_ureduce_func _ureduce append diff quantile arange array asanyarray asarray"
        " _append_dispatcher _diff_dispatcher _quantile_dispatcher empty normalize_axis_index ones"
    ),
    "numpy.lib._shape_base_impl": (
        "_array_split_dispatcher _arrays_for_stack_dispatcher _split_dispatcher array_split split"
        " array asanyarray asarray normalize_axis_index zeros"
    ),
    "numpy.lib._stride_tricks_impl": "broadcast_to _broadcast_to",
    "numpy.ma.core": "get_mask getmask is_masked",
    "numpy.ma": "is_masked",
    "numpy.random": "Generator PCG64 get_state set_state",
    "torch": (
        "Generator Tensor _C add are_deterministic_algorithms_enabled autograd clamp cuda"
        " default_generator device full get_default_dtype get_float32_matmul_precision"
        " get_num_threads get_rng_state inference_mode is_grad_enabled jit mm mul no_grad ones"
        " ops profiler set_rng_state set_grad_enabled set_num_threads utils version"
    ),
    "torch._C": (
        "_get_fp32_precision_getter _instruction_counter _get_privateuse1_backend_name"
        " DisableTorchFunctionSubclass _profiler _autograd get_num_threads set_num_threads"
    ),
    "torch.jit": "annotate is_scripting",
    "torch._jit_internal": "is_scripting",
    "torch._ops": (
        "OpOverloadPacket.* TorchBindOpOverload.* _contains_fake_script_object"
        " _must_dispatch_in_python"
    ),
    "torch.autograd": "profiler _profiler_enabled",
    "torch.autograd.profiler": (
        "KinetoStepTracker.* _ProfilerStats _ProfilerStats.__init__ _disable_profiler"
        " _enable_profiler _maybe_cupti_monitor _prepare_profiler _run_on_profiler_start"
        " _run_on_profiler_stop _set_is_profiler_enabled kineto_available perf_counter_ns"
        " profile profile.* record_function record_function.* _kineto_step _supported_activities"
        " _add_metadata_json _ExperimentalConfig"
    ),
    "torch.profiler": "ProfilerActivity profile record_function supported_activities",
    "torch.profiler.profiler": (
        "ExecutionTraceObserver.build_execution_trace_obs_from_env _KinetoProfile"
        " _KinetoProfile.* _default_schedule_fn _parse_activities _parse_custom_profiler_config"
        " is_initialized kineto_available prof profile profile.*"
    ),
    "torch.cuda": (
        "current_device device_count get_rng_state_all is_available is_initialized"
        " manual_seed_all max_memory_allocated reset_peak_memory_stats set_rng_state_all"
        " synchronize _is_compiled"
    ),
    "torch.xpu": "get_rng_state_all is_initialized manual_seed_all set_rng_state_all",
    "torch.distributed": "is_available is_initialized get_rank get_world_size get_backend",
    "torch.distributed.distributed_c10d": (
        "_World.default_pg _WorldMeta.WORLD is_initialized get_rank get_world_size get_backend"
        " get_pg_count _get_all_pg_configs"
    ),
    "coverage": "Coverage",
    "coverage.control": "Coverage.current",
    "torch._dynamo.utils": "get_compilation_metrics set_compilation_metrics_limit counters",
    "torch._C._dynamo.eval_frame": "set_code_exec_strategy skip_code",
    "torch.utils._config_module": (
        "ConfigModule.__getattr__ ConfigModule._get_alias_module_and_name"
        " ConfigModule._get_alias_val ConfigModule._warn_if_deprecated SubConfigProxy.__getattr__"
    ),
}

# Before NumPy 2 the same functions were in modules with other names.
NAMES |= {
    name.replace("numpy._core", "numpy.core").removesuffix("_impl").replace("lib._", "lib."): names
    for name, names in NAMES.items()
    if name.startswith(("numpy._core.", "numpy.lib._"))
}

#: Modules of these packages are restored in `sys.modules` together, if one of `WATCHED` or `NAMES`
#: has changed there.
ROOTS = frozenset({"torch", "numpy", "msgspec", "expecttest", "tabulate", "pytest_torchprof"})
WATCHED = (
    "torch.nn",
    "torch._C._autograd",
    "torch._C._profiler",
    "torch.profiler._cupti_monitor",
    "numpy.ma",
    "expecttest",
    "pytest_torchprof",
    "pytest_torchprof.capture",
    "pytest_torchprof.capture.profiler",
    "pytest_torchprof.session.runs",
    "pytest_torchprof.rules.registry",
    "pytest_torchprof.trace.read",
)


# ---- Functions bound before tests can patch them.

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

#: Functions for code that runs while a test's patches are in place, bound before them: a test that
#: replaces `open`, the clock or `gc.collect` must neither break us nor count our calls. They are in
#: a namespace, because tools that replace the file system or the clock search the globals of all
#: modules.
REAL = SimpleNamespace(
    clock=time.perf_counter_ns,
    cpu_clock=time.process_time_ns,
    collect=gc.collect,
    sleep=time.sleep,
    getpid=os.getpid,
    dup=os.dup,
    dup2=os.dup2,
    close=os.close,
    open_fd=os.open,
    open=open,
    unlink=os.unlink,
    current_thread=threading.get_ident,
    thread=threading.Thread,
    frame=sys._getframe,
    frames=sys._current_frames,
    gettrace=sys.gettrace,
    settrace=sys.settrace,
    recursion_limit=sys.getrecursionlimit,
    set_recursion_limit=sys.setrecursionlimit,
    thread_clock=time.thread_time_ns,
    any_clock=getattr(time, "clock_gettime_ns", None),
    native_id=threading.get_native_id,
    threads=threading.enumerate,
    listdir=os.listdir,
    stat=os.stat,
    statvfs=getattr(os, "statvfs", None),
    waitid=getattr(os, "waitid", None),
    rusage=getattr(resource, "getrusage", None),
)


@contextmanager
def muted(*fds: int, flush: bool = True) -> Iterator[None]:
    """Discard what is written to these file descriptors, including output of C++ code.

    Without ``flush``, only C++ code's: Python's buffered output is written later, as usual.
    """
    if flush:
        _flush()
    saved = []
    for fd in fds:
        with suppress(OSError):  # a test may have closed it
            saved.append((fd, _aside(REAL.dup(fd))))
    null = _aside(REAL.open_fd(os.devnull, os.O_WRONLY))
    try:
        for fd, _ in saved:
            REAL.dup2(null, fd)
        yield
    finally:
        if flush:
            _flush()
        for fd, copy in saved:
            with suppress(OSError):  # as above: what is left must come back
                REAL.dup2(copy, fd)
                REAL.close(copy)
        with suppress(OSError):
            REAL.close(null)


def _aside(fd: int) -> int:
    """The same file under a number that is none of the standard streams', which tests close."""
    taken = []
    while fd <= 2:
        taken.append(fd)
        fd = REAL.dup(fd)
    for one in taken:
        REAL.close(one)
    return fd


def is_silent(call: Callable[[], object]) -> bool:
    """Whether a call writes nothing to stderr; what it writes is lost."""
    if os.name == "nt":  # a pipe cannot be polled there
        return False
    try:
        copy = _aside(os.dup(2))
    except OSError:  # closed
        return False
    read, write = os.pipe()
    try:
        os.set_blocking(read, False)  # a new process may hold the other end
        os.dup2(write, 2)
        os.close(write)
        try:
            call()
        finally:
            os.dup2(copy, 2)
        return not os.read(read, 1)
    except BlockingIOError:
        return True
    finally:
        os.close(copy)
        os.close(read)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        try:  # noqa: SIM105 - quicker so
            stream.flush()  # type: ignore[union-attr]
        except (AttributeError, OSError, ValueError):  # none, or closed by a test
            pass


class no_collection:  # noqa: N801 - read as the statement that it stands for
    """No automatic collection, though `gc.isenabled` reports what the test expects."""

    __slots__ = ("_old",)

    def __enter__(self) -> None:
        self._old = gc.get_threshold()
        gc.set_threshold(0, *self._old[1:])

    def __exit__(self, *_: object) -> None:
        if gc.get_threshold()[0] == 0:  # else the test has set its own
            gc.set_threshold(*self._old)


# ---- Tell cheaply whether a dict has changed, without comparing its items.
#
# CPython numbers the states of dicts: PEP 509, ``ma_version_tag``, "incremented for each change".
# It exists up to 3.13. If it is missing, or not at the expected offset, it is not used.

#: After the reference count, the type, and the number of entries.
_OFFSET = 24


def version_of(names: dict[str, Any]) -> ctypes.c_uint64 | None:
    """A counter whose ``value`` changes with each change of this dict, which must outlive it.

    None if this Python has none.
    """
    return _at(names) if counts_versions() else None


def _at(names: dict[str, Any]) -> ctypes.c_uint64:
    return ctypes.c_uint64.from_address(id(names) + _OFFSET)


@cache
def counts_versions() -> bool:
    """Whether the number is at the expected offset, and behaves as expected."""
    if sys.implementation.name != "cpython" or sys.getsizeof({}) < _OFFSET + 8:
        return False
    names: dict[str, Any] = {"a": 1, "b": 2}
    version = _at(names)
    seen = [version.value]
    others = [names] * 10  # a reference count would count these
    looked = names["a"], names.get("c"), dict(names), list(names), len(others)
    still = version.value == seen[0] and len(looked) > 0
    for change in ({"a": 3}, {"a": 1}, {"c": 4}, {"b": None}):
        names.update(change)
        seen.append(version.value)
    del names["c"]
    seen.append(version.value)
    names["c"] = 4
    seen.append(version.value)
    return still and len(set(seen)) == len(seen)


# ---- Protect our code from a test's patches by restoring the originals while it runs.
#
# A test or a fixture may replace anything: `os.getcwd`, `re.sub`, `sys.modules["torch"]`. Our
# hooks, and the libraries they use, run among these patches. While the guard is entered,
# everything listed in `originals` is as it was when the session started; on leaving, the patches
# are back.

_MISSING: Any = object()

# Bound here, as a test may replace any of them.
_dict, _id, _isinstance, _zip = dict, id, isinstance, zip
_joined, _number = b"".join, int.from_bytes
#: Bits of a dict's version.
_WORD = 64
#: After this many changes to other names, a dict's version is no longer used.
_RESTLESS, _MOST_RESTLESS = 20, 8


class _Place(NamedTuple):
    """Names of a module, a class or `sys.modules`, and their original values."""

    owner: Any
    seen: Mapping[str, Any]
    names: tuple[str, ...]
    values: tuple[Any, ...]
    fetch: Callable[[Mapping[str, Any]], tuple[Any, ...]]
    #: Names that are also checked if one of the names differs.
    also: Mapping[str, Any]


_Look = tuple[Any, Mapping[str, Any], tuple[Any, ...], _Place]


class PatchGuard:
    """``with PATCH_GUARD:`` restores the originals; ``with PATCH_GUARD.suspended:`` the patches.

    Both may be nested, in one thread. Entering costs about 6 us while nothing is replaced, and up
    to 300 us if Python does not number the states of its dicts, because each name is then compared.
    """

    def __init__(self) -> None:
        self.suspended = _Suspended(self)
        self._places: list[_Place] = []
        #: What is compared on the way in, which happens often.
        self._looks: list[_Look] = []
        #: The dicts' versions, and those without patches; empty if there are no versions.
        self._versions: list[Any] = []
        self._sound = b""
        #: Places that change all the time, but not in the listed names: their names are compared.
        self._restless: list[_Look] = []
        self._changes: dict[int, int] = {}
        self._inside = False
        self._before: list[bool] = []
        #: What has been replaced, by (owner, name), with the value that the test sees.
        self._away: dict[tuple[int, str], tuple[Any, str, Any]] = {}
        self._known: set[tuple[int, str]] = set()
        #: Modules that nothing has imported so far.
        self._later: tuple[str, ...] = ()
        self._thread = 0
        self._depth = self._lowered = 0
        self._finders: list[Any] = []
        #: The list of finders that the test has emptied.
        self._emptied: list[Any] | None = None

    def learn(self) -> None:
        """Take the current values as the originals for this thread's tests."""
        self._thread = REAL.current_thread()
        self._depth = sys.getrecursionlimit()
        self._finders = list(sys.meta_path)
        self._places, self._known = [], set()
        modules = {
            name: module
            for name, module in list(sys.modules.items())
            if name.partition(".")[0] in ROOTS or name in NAMES
        }
        self._add(_place(sys.modules, sys.modules, [*NAMES, *WATCHED], modules))
        self._later = tuple(NAMES)
        self.learn_more()

    def learn_more(self) -> None:
        """Add modules that were imported since; called before a test, not during one."""
        new = [name for name in self._later if name in sys.modules]
        if new:
            self._later = tuple(name for name in self._later if name not in new)
            self._add(place for name in new for place in _places(name))

    def _add(self, places: Iterable[_Place]) -> None:
        for place in places:
            self._places.append(place)
            self._known |= {(id(place.owner), name) for name in place.names}
        self._look_at(self._places)

    def _look_at(self, places: Sequence[_Place]) -> None:
        looks = [(one.fetch, one.seen, one.values, one) for one in places]
        many = {at for at, times in self._changes.items() if times >= _RESTLESS}
        self._restless = [look for look in looks if _id(look[1]) in many]
        self._looks = [look for look in looks if _id(look[1]) not in many]
        versions = [version_of(seen) for _, seen, *_ in self._looks if isinstance(seen, dict)]
        self._versions = [one for one in versions if one is not None]
        if len(self._versions) < len(self._looks):
            self._looks, self._restless, self._versions = looks, [], []
        self._sound = bytes(8 * len(self._versions))

    def forget(self) -> None:
        """Forget the originals, for another session with other plugins in this process."""
        self._places, self._known, self._later = [], set(), ()
        self._looks, self._versions, self._sound = [], [], b""
        self._restless, self._changes = [], {}
        self._finders, self._depth = [], 0

    # ---------------------------------------------------------------- in and out

    def __enter__(self) -> None:
        if REAL.current_thread() != self._thread:
            return
        self._before.append(self._inside)
        if not self._inside:
            self._go_in()

    def __exit__(self, *_: object) -> None:
        self.turn_back()

    def turn(self, *, inside: bool) -> None:
        """Go in or out, until `turn_back`."""
        if REAL.current_thread() != self._thread:
            return  # a thread of the test's own keeps its patches
        self._before.append(self._inside)
        if inside != self._inside:
            self._go_in() if inside else self._come_out()

    def turn_back(self) -> None:
        """Restore the state before the last turn."""
        if REAL.current_thread() != self._thread or not self._before:
            return
        inside = self._before.pop()
        if inside != self._inside:
            self._go_in() if inside else self._come_out()

    def _go_in(self) -> None:
        self._inside = True
        if REAL.recursion_limit() < self._depth:
            self._lowered = REAL.recursion_limit()
            REAL.set_recursion_limit(self._depth)
        if not sys.meta_path and self._finders:
            sys.meta_path[:] = self._finders
            self._emptied = sys.meta_path
        for look in self._restless:
            if not _is_sound(look):
                self._restore(look[3])
        now = _joined(self._versions)  # one call for all of them
        if not now:
            for look in self._looks:
                if not _is_sound(look):
                    self._restore(look[3])
        elif now != self._sound:
            known, restless = True, False
            for look in _differing(self._looks, now, self._sound):
                if not _is_sound(look):
                    self._restore(look[3])
                    known = False
                    continue
                at = _id(look[1])
                self._changes[at] = times = self._changes.get(at, 0) + 1
                restless |= times == _RESTLESS
            if restless and len(self._restless) < _MOST_RESTLESS:
                self._look_at(self._places)
                known = False
            self._sound = now if known else _joined(self._versions)

    def _restore(self, place: _Place) -> None:
        owner, seen = place.owner, place.seen
        for originals in (_zip(place.names, place.values, strict=True), place.also.items()):
            for name, real in originals:
                now = seen.get(name, _MISSING)
                if now is not real:
                    self._away[_id(owner), name] = owner, name, now
                    _put(owner, name, real)

    def _come_out(self) -> None:
        self._inside = False
        while self._away:
            owner, name, patch = self._away.popitem()[1]
            _put(owner, name, patch)
        if self._emptied is not None:
            self._emptied.clear()
            self._emptied = None
        if self._lowered:
            lowered, self._lowered = self._lowered, 0
            try:
                REAL.set_recursion_limit(lowered)
            except RecursionError:  # we are deeper in the stack than the test was
                self._lowered = 0

    # ---------------------------------------------------------------- patches of our own

    @property
    def depth_of_test(self) -> int:
        """The recursion limit as the test sees it."""
        return self._lowered or int(REAL.recursion_limit())

    def set_depth_of_test(self, depth: int) -> None:
        """Set it, now or on the way out."""
        if self._inside and depth < self._depth:
            self._lowered = depth
            depth = self._depth
        elif self._inside:
            self._lowered = 0
        REAL.set_recursion_limit(depth)

    def seen_by_test(self, owner: Any, name: str) -> Any:
        """An attribute as the test sees it."""
        if (patched := self._away.get((_id(owner), name))) is not None:
            return patched[2]
        return getattr(owner, name)

    def show_test(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute as the test sees it; our code still sees the original."""
        if self._inside and (_id(owner), name) in self._known:
            self._away[_id(owner), name] = owner, name, value
        else:
            setattr(owner, name, value)


class _Suspended:
    """The way out of the guard, and in again."""

    def __init__(self, guard: PatchGuard) -> None:
        self._guard = guard

    def __enter__(self) -> None:
        self._guard.turn(inside=False)

    def __exit__(self, *_: object) -> None:
        self._guard.turn_back()


def _is_sound(look: _Look) -> bool:
    fetch, seen, values, _ = look
    try:
        same: bool = fetch(seen) == values
    except Exception:  # noqa: BLE001 - a name is gone, or cannot even be compared
        return False
    return same


def _differing(looks: Sequence[_Look], now: bytes, before: bytes) -> list[_Look]:
    """Those whose version has changed: usually few, so found without comparing each one."""
    found, at = [], 0
    changed = _number(now, "little") ^ _number(before, "little")
    while changed:
        skipped = ((changed & -changed).bit_length() - 1) // _WORD
        at += skipped + 1
        found.append(looks[at - 1])
        changed >>= (skipped + 1) * _WORD
    return found


def _put(owner: Any, name: str, value: Any) -> None:
    if _isinstance(owner, type):
        if value is _MISSING:
            type.__delattr__(owner, name)
        else:
            type.__setattr__(owner, name, value)
        return
    names = owner if _isinstance(owner, _dict) else owner.__dict__
    if value is _MISSING:
        names.pop(name, None)
    else:
        names[name] = value


def _places(module_name: str) -> Iterator[_Place]:
    """All names in `NAMES` that a module has."""
    module = sys.modules.get(module_name)
    if not isinstance(module, ModuleType):
        return
    by_owner: dict[str, list[str]] = {}
    for dotted in NAMES[module_name].split():
        owner_name, _, name = dotted.rpartition(".")
        by_owner.setdefault(owner_name, []).append(name)
    for owner_name, names in by_owner.items():
        owner = vars(module).get(owner_name) if owner_name else module
        if isinstance(owner, ModuleType | type):
            yield from _place(owner, vars(owner), names)


def _place(
    owner: Any,
    seen: Mapping[str, Any],
    names: list[str],
    also: Mapping[str, Any] | None = None,
) -> Iterator[_Place]:
    if "*" in names:
        # For a class, what is bound on access: functions, properties, class methods.
        called = _bound if isinstance(owner, type) else callable
        names = [*names, *(name for name, value in seen.items() if called(value))]
    there = tuple(dict.fromkeys(name for name in names if name in seen))
    # The first name twice: for a single name, `itemgetter` makes no tuple.
    if there := there and (*there, there[0]):
        fetch = itemgetter(*there)
        if isinstance(seen, MappingProxyType):  # twice as slow as the dict itself
            seen = next((one for one in get_referents(seen) if isinstance(one, dict)), seen)
        yield _Place(owner, seen, there, fetch(seen), fetch, also or {})


def _bound(value: Any) -> bool:
    return hasattr(type(value), "__get__")


PATCH_GUARD = PatchGuard()


# ---- Replace a function as the test sees it.


def replace(where: Any, name: str, wrap: Callable[[Callable[..., Any]], Any], undo: Undo) -> None:
    """Wrap a function as the test sees it; ``undo`` restores it, unless the test has."""
    old = PATCH_GUARD.seen_by_test(where, name)
    new = wrap(old)
    PATCH_GUARD.show_test(where, name, new)

    def back() -> None:
        if PATCH_GUARD.seen_by_test(where, name) is new:
            PATCH_GUARD.show_test(where, name, old)

    undo.callback(back)
