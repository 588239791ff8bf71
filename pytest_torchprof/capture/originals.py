"""Names that our code uses, directly or through libraries, and tests may patch: see `PatchGuard`.

A ``*`` stands for everything callable, ``Class.*`` for all methods of a class. Names that a version
of Python or of a library lacks are skipped. A test that replaces everything our code calls, one
name after the other, finds what is missing here. Included are also values that our code reads:
flags, the name of the system, the folder for temporary files.
"""

from __future__ import annotations

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
    "pytest_torchprof.session.runs.one_run",
    "pytest_torchprof.rules.engine.registry",
    "pytest_torchprof.trace.read",
)
