"""Follow a program's host code on tensors without values.

Triton is replaced by a stand-in that records launches, and torch works on the meta device, so that
no GPU is needed and nothing is computed. A record says which kernels a program launches, how wide,
with how many warps, and which torch operators it calls on how many bytes.

This module runs programs: only :mod:`kernel_measure.worker` uses it, inside the sandbox.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import inspect
import linecache
import sys
import types
from collections.abc import Iterator
from typing import Any, ClassVar, Final, Self

from kernel_measure.kernel_text import loop_trips, static_counts

#: Calls of one case that are recorded; then a program is followed no further.
MAX_CALLS: Final = 20_000
#: Integer arguments of a launch below this count as tile sizes.
MAX_TILE: Final = 5_000
_PROGRAM: Final = "/program.py"
_REFERENCE: Final = "/reference.py"
_LAUNCH_OPTIONS: Final = {"num_warps": 4, "num_stages": 3, "num_ctas": 1}
#: Operators that only make or view a tensor: they move no bytes.
_FREE: Final = {
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided",
    "detach", "alias", "lift_fresh", "_unsafe_view",
}  # fmt: skip
_MATRIX_PRODUCTS: Final = frozenset({"mm", "bmm", "addmm", "baddbmm"})

#: Calls of the case that is followed, in order.
CALLS: list[dict[str, Any]] = []


class NotFollowedError(Exception):
    """Raised when a program makes more calls than are recorded."""


def _number(value: Any, default: int = 0) -> int:
    """Make a plain integer of a number, and the default of anything else, as a placeholder."""
    try:
        return max(0, int(value))
    except (TypeError, ValueError, OverflowError):
        return default


def _record(call: dict[str, Any]) -> None:
    if len(CALLS) >= MAX_CALLS:
        raise NotFollowedError(f"more than {MAX_CALLS} calls")
    CALLS.append(call)


class Placeholder:
    """Stands for a name of Triton that host code only mentions."""

    def __init__(self, name: str = "") -> None:
        self._name = name

    def __getattr__(self, name: str) -> Placeholder:
        if name.startswith("__"):
            raise AttributeError(name)
        return Placeholder(f"{self._name}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return a decorated function as it is, and this for any other call."""
        decorates = len(args) == 1 and callable(args[0]) and not kwargs
        return args[0] if decorates else self

    def __getitem__(self, _: Any) -> Placeholder:
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __repr__(self) -> str:
        return self._name


class _ConstexprInt(int):
    """An integer wrapped by ``tl.constexpr``."""

    value = property(int)


def _constexpr(value: Any = None) -> Any:
    is_int = isinstance(value, int) and not isinstance(value, bool)
    return _ConstexprInt(value) if is_int else value


class _TritonModule(types.ModuleType):
    """A module of Triton in which every name is there."""

    constexpr: ClassVar[Any] = staticmethod(_constexpr)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Placeholder(f"{self.__name__}.{name}")


class TritonConfig:
    """Stands for ``triton.Config``."""

    def __init__(self, kwargs: Any = None, *args: Any, **options: Any) -> None:
        named = dict(zip(("num_warps", "num_stages"), args, strict=False))
        self.kwargs = dict(kwargs or {})
        self.options = {**_LAUNCH_OPTIONS, **named, **options}
        self.num_warps, self.num_stages = self.options["num_warps"], self.options["num_stages"]


class Kernel:
    """Stands for a Triton kernel: launching it records the launch."""

    def __init__(self, fn: Any, configs: Any = (), heuristics: Any = None) -> None:
        self.fn, self.configs = fn, list(configs)
        self.heuristics = dict(heuristics or {})
        if self.configs:
            self.best_config = self.configs[0]
        self.__name__ = getattr(fn, "__name__", "kernel")
        self.arg_names = list(inspect.signature(fn).parameters)

    def __call__(self, *_: Any, **__: Any) -> Placeholder:
        """Stand for a call from the host, and for compiling."""
        return Placeholder("call")

    warmup = __call__

    def __getitem__(self, grid: Any) -> Any:
        return functools.partial(self.run, grid=grid)

    def run(self, *args: Any, grid: Any = (1,), warmup: bool = False, **kwargs: Any) -> Placeholder:
        """Record a launch; of an autotuned kernel that of its first configuration."""
        if not warmup:
            _record(self._launch(grid, args, kwargs))
        return Placeholder("launched")

    def _launch(self, grid: Any, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Describe a launch as a line of the file holds it."""
        parameters = inspect.signature(self.fn).parameters.values()
        values = {p.name: p.default for p in parameters if p.default is not p.empty}
        values |= dict(zip(self.arg_names, args, strict=False))
        if self.configs:
            values |= self.configs[0].kwargs | self.configs[0].options
        values = {**_LAUNCH_OPTIONS, **values, **kwargs}
        for name, rule in self.heuristics.items():
            values[name] = rule(dict(values))
        options = {name: values.pop(name) for name in _LAUNCH_OPTIONS}
        width = grid(dict(values)) if callable(grid) else grid
        sizes = list(width) if isinstance(width, (tuple, list)) else [width]
        x, y, z = ([_number(size) for size in sizes] + [1, 1, 1])[:3]
        given = [v for v in values.values() if not isinstance(v, Placeholder)]
        tensors = [v for v in given if hasattr(v, "element_size")]
        numbers = {n: v for n, v in values.items() if isinstance(v, (bool, int, float))}
        tiles = [_number(v) for v in numbers.values() if 0 < v < MAX_TILE]
        return {
            "kind": "launch",
            "name": str(self.__name__)[:200],
            "grid_x": x,
            "grid_y": y,
            "grid_z": z,
            "warps": _number(options["num_warps"], 4) or 4,
            "stages": _number(options["num_stages"], 3) or 3,
            "configurations": len(self.configs),
            "bytes": sum(_number(t.numel() * t.element_size()) for t in tensors),
            "largest_tile": max(tiles, default=0),
            "trips": min(1e17, float(loop_trips(self.fn, numbers))),
            **static_counts(self.fn),
        }


class _TritonFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every module below ``triton``."""

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        """Find a module of Triton."""
        ours = name.startswith("triton.")
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if ours else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """Make one in which every name is there."""
        return _TritonModule(spec.name)

    def exec_module(self, _: types.ModuleType) -> None:
        """Leave it as it is."""


def install_triton() -> None:
    """Put the stand-in in the place of Triton."""

    def unwrap(kernel: Any) -> Kernel:
        return kernel if isinstance(kernel, Kernel) else Kernel(kernel)

    def jit(fn: Any = None, **_: Any) -> Any:
        return Kernel if fn is None else Kernel(fn)

    def autotune(configs: Any = (), *_: Any, **__: Any) -> Any:
        return lambda k: Kernel(unwrap(k).fn, configs, unwrap(k).heuristics)

    def heuristics(values: Any) -> Any:
        return lambda k: Kernel(unwrap(k).fn, unwrap(k).configs, unwrap(k).heuristics | values)

    triton, language = _TritonModule("triton"), _TritonModule("triton.language")
    triton.__path__, language.__path__ = [], []
    vars(triton).update(
        jit=jit,
        autotune=autotune,
        heuristics=heuristics,
        Config=TritonConfig,
        cdiv=lambda a, b: -(-int(a) // int(b)),
        next_power_of_2=lambda n: 1 << max(0, int(n) - 1).bit_length(),
        language=language,
        __version__="3.5.0",
    )
    # Gluon, Triton's language with layouts: launched in the same way.
    experimental = _TritonModule("triton.experimental")
    gluon = _TritonModule("triton.experimental.gluon")
    vars(gluon).update(jit=jit, __path__=[])
    vars(experimental).update(gluon=gluon, __path__=[])
    vars(triton).update(experimental=experimental)
    for module in (triton, language, experimental, gluon):
        sys.modules[module.__name__] = module
    sys.meta_path.insert(0, _TritonFinder())


class _Idle:
    """Stands for a stream, an event or a device guard."""

    cuda_stream = 0

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None


def _meta_for_gpu(device: Any) -> Any:
    """Return the meta device in the place of a GPU, and any other device as it is."""
    is_index = isinstance(device, int) and not isinstance(device, bool)
    return "meta" if is_index or "cuda" in str(device) else device


def fake_gpu(torch: Any, multiprocessors: int, capability: tuple[int, int] = (9, 0)) -> None:
    """Let torch believe in a GPU with so many multiprocessors, of a compute capability."""
    facts = types.SimpleNamespace(
        name="GPU", multi_processor_count=multiprocessors, warp_size=32,
        major=capability[0], minor=capability[1],
        total_memory=140 << 30, max_threads_per_multi_processor=2048, L2_cache_size=60 << 20,
        shared_memory_per_block_optin=232448, shared_memory_per_multiprocessor=233472,
        regs_per_multiprocessor=65536,
    )  # fmt: skip
    names: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_properties": lambda *_: facts,
        "get_device_capability": lambda *_: capability,
        "get_device_name": lambda *_: facts.name,
        "synchronize": lambda *_: None,
        "empty_cache": lambda: None,
        **dict.fromkeys(("current_stream", "stream", "device", "Stream", "Event"), _Idle),
    }
    for name, value in names.items():
        setattr(torch.cuda, name, value)
    torch._C._cuda_getCurrentRawStream = lambda *_: 0  # noqa: SLF001 - what Triton asks


def meta_mode(torch: Any) -> Any:
    """Return a mode that sends tensors for a GPU to the meta device."""
    from torch.overrides import TorchFunctionMode

    class OnMeta(TorchFunctionMode):  # type: ignore[misc,unused-ignore]
        """Sends tensors for a GPU to the meta device."""

        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs, name = dict(kwargs or {}), getattr(func, "__name__", "")
            if kwargs.get("device") is not None:
                kwargs["device"] = _meta_for_gpu(kwargs["device"])
            if name in {"cuda", "pin_memory"}:
                return args[0]
            if name == "data_ptr":
                return 1 << 20
            if name == "__get__" and getattr(func.__self__, "__name__", "") == "is_cuda":
                return True
            if name == "to" and len(args) > 1 and isinstance(args[1], (str, torch.device)):
                args = (args[0], _meta_for_gpu(args[1]), *args[2:])
            return func(*args, **kwargs)

    return OnMeta()


def install_torch(torch: Any, multiprocessors: int) -> tuple[Any, Any]:
    """Let torch believe in a GPU; return two modes: tensors on the meta device, operators noted."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Operators(TorchDispatchMode):  # type: ignore[misc,unused-ignore]
        """Records the operators that move bytes."""

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            name = func.overloadpacket.__name__
            if not func.is_view and name not in _FREE:
                read = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
                written = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
                matrices = [t for t in read if t.dim() >= 2][-2:]
                flops = 0
                if name in _MATRIX_PRODUCTS and len(matrices) == 2:
                    flops = 2 * matrices[0].numel() * matrices[1].shape[-1]
                size = sum(t.numel() * t.element_size() for t in (*read, *written))
                _record({"kind": "operator", "name": name, "bytes": size, "flops": flops})
            return result

    fake_gpu(torch, multiprocessors)
    torch.compile = lambda fn=None, **_: fn if fn is not None else (lambda f: f)
    return meta_mode(torch), Operators()


def _import_text(code: str, file: str) -> types.ModuleType:
    linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
    module = types.ModuleType(file.strip("/").removesuffix(".py"))
    module.__file__ = file
    sys.modules[module.__name__] = module
    exec(compile(code, file, "exec"), module.__dict__)  # noqa: S102 - in the sandbox
    return module


def follow(code: str, data: Any, meta: Any, operators: Any) -> list[dict[str, Any]]:
    """Run a program's ``custom_kernel`` on data without values; return the calls that it makes."""
    with meta, operators:
        module = _import_text(code, _PROGRAM)
        CALLS.clear()
        module.custom_kernel(data)
    return list(CALLS)


def follow_model(
    code: str, reference: str, device: Any, meta: Any, operators: Any
) -> list[dict[str, Any]]:
    """Follow a program in the form of KernelBench on the inputs that its reference makes.

    The program defines ``ModelNew`` or ``Model``, the reference ``get_inputs`` and
    ``get_init_inputs``; ``device`` is the meta device, so that weights and inputs have no values.
    """
    with device, meta, operators:
        problem = _import_text(reference, _REFERENCE)
        program = _import_text(code, _PROGRAM)
        model = getattr(program, "ModelNew", None) or program.Model
        model = model(*getattr(problem, "get_init_inputs", list)())
        inputs = problem.get_inputs()
        CALLS.clear()
        model(*inputs)
    return list(CALLS)
