"""What a program under test is kept from.

Programs run in bubblewrap: namespaces of their own, a file system that holds only what they need,
and a filter made with libseccomp that every process in there has from its first instruction. The
worker is process 1 of its namespace, so that nothing of it outlives it. Or they run with
``--trusted``: no isolation, for programs of your own. The README's table says what bubblewrap
stops; tests try each line.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import functools
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kernel_archive.errors import KernelArchiveError
from kernel_archive.toml_files import toml_beside
from kernel_measure.settings import Settings


class IsolationError(KernelArchiveError):
    """Raised when programs cannot be isolated here and nobody said that they are trusted."""


# ---------------------------------------------------------------- the system call filter
#: Calls that a program is told do not exist, with the reasons in the file.
REFUSED: Final = frozenset(" ".join(toml_beside(__file__, "system_calls.toml").values()).split())
#: What libseccomp calls SCMP_ACT_... and SCMP_CMP_...
_ACT_ALLOW: Final = 0x7FFF0000
_ACT_ENOSYS: Final = 0x00050000 | errno.ENOSYS
_CMP_EQ, _CMP_MASKED_EQ = 4, 7
_NAMESPACE_FLAGS: Final = 0x7E020000  # CLONE_NEW*: all that make a namespace
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4


class _Comparison(ctypes.Structure):
    """Libseccomp's ``scmp_arg_cmp``: argument, operator and one or two numbers."""

    _fields_ = (
        ("argument", ctypes.c_uint), ("operator", ctypes.c_int),
        ("a", ctypes.c_uint64), ("b", ctypes.c_uint64),
    )  # fmt: skip


_INT: Final = 0xFFFFFFFF  # of an option of prctl the kernel looks at these bits alone
#: Calls that are allowed with these arguments alone; a second entry is a second way.
_CONDITIONS: Final = {
    "socket": [[_Comparison(0, _CMP_EQ, 1)]],  # local sockets; there is none to reach
    "clone": [[_Comparison(0, _CMP_MASKED_EQ, _NAMESPACE_FLAGS, 0)]],
    "prlimit64": [[_Comparison(0, _CMP_EQ, 0)]],  # its own limits
    # A worker that could take back that it ends with its driver would outlive it, and others could
    # write into one that could take back that nobody may look into it. Every other option has a bit
    # that these two lack, or is their sum.
    "prctl": [
        [
            _Comparison(0, _CMP_MASKED_EQ, _INT, _PR_SET_PDEATHSIG),
            _Comparison(1, _CMP_EQ, signal.SIGKILL),
        ],
        [_Comparison(0, _CMP_MASKED_EQ, _INT, _PR_SET_DUMPABLE), _Comparison(1, _CMP_EQ, 0)],
        [_Comparison(0, _CMP_MASKED_EQ, _INT, _PR_SET_PDEATHSIG + _PR_SET_DUMPABLE)],
        *(
            [_Comparison(0, _CMP_MASKED_EQ, 1 << bit, 1 << bit)]
            for bit in range(32)
            if 1 << bit not in (_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE)
        ),
    ],
}


def write_filter(descriptor: int) -> None:
    """Write the filter as BPF into an open file, as ``bwrap --seccomp`` reads it.

    Every call that libseccomp knows by name and ``REFUSED`` does not hold is allowed; others answer
    ENOSYS. Calls of another architecture end the process. An ``IsolationError`` says that
    libseccomp is missing or refuses.
    """
    missing = "the system call filter needs libseccomp (package libseccomp2)"
    try:
        library = ctypes.CDLL("libseccomp.so.2")
    except OSError as error:
        raise IsolationError(missing) from error
    library.seccomp_init.restype = ctypes.c_void_p
    library.seccomp_syscall_resolve_num_arch.restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.seccomp_init(_ACT_ENOSYS))
    if not context:
        raise IsolationError(missing)
    libc = ctypes.CDLL(None)
    failed = 0
    for number in range(1024):
        text = library.seccomp_syscall_resolve_num_arch(0, number)
        if not text:
            continue
        name = ctypes.string_at(text).decode()
        libc.free(ctypes.c_void_p(text))
        for rule in _CONDITIONS.get(name, [[]]) if name not in REFUSED else []:
            array = (_Comparison * len(rule))(*rule)
            failed |= library.seccomp_rule_add_array(context, _ACT_ALLOW, number, len(rule), array)
    failed |= library.seccomp_export_bpf(context, descriptor)
    library.seccomp_release(context)
    os.lseek(descriptor, 0, os.SEEK_SET)
    if failed:
        raise IsolationError(f"libseccomp could not make the filter (error {failed})")


# ---------------------------------------------------------------- bubblewrap
#: Root's workers become this user before they load anything: "nobody", who owns nothing.
UNPRIVILEGED: Final = 65534
_SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
#: Of /etc a program gets how libraries and compilers are found.
_FROM_ETC: Final = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives")
#: What changes the kernel is read-only. All of /proc can't be: CUDA names its threads there.
_KERNEL_CONTROLS: Final = ("sys", "sysrq-trigger", "irq", "bus", "fs")
_GPU_FACTS: Final = ("/sys/devices", "/sys/bus/pci", "/sys/module", "/sys/class/drm")
_PATHS_OF_COMPILERS: Final = (
    "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "TRITON_PTXAS_PATH", "TRITON_LIBCUDA_PATH",
    "CC", "CXX", "LIBRARY_PATH", "CPATH",
)  # fmt: skip


def worker_user() -> int | None:
    """Return the user that a worker becomes: ``None`` for the driver's own."""
    return UNPRIVILEGED if os.geteuid() == 0 else None


def bubblewrap_command(scratch: Path, *, cache: Path, gpu: bool) -> list[str]:
    """Make a worker's own folders, and the command that its command line begins with.

    A worker can write to its folder alone, in which lie its ``/tmp``, its ``/dev/shm`` and the
    compiler caches that it was lent (``scratch / "lent"``, seen at ``cache``). With ``gpu`` it gets
    the devices.
    """
    command = [shutil.which("bwrap") or "bwrap", "--die-with-parent", "--as-pid-1"]
    if worker_user() is None:
        command += ["--unshare-all", "--cap-drop", "ALL"]
    else:  # root maps nobody: a worker gives its rights up for good, by setresuid
        command += [f"--unshare-{space}" for space in ("ipc", "pid", "net", "uts", "cgroup-try")]
        command += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    command += _system_mounts(gpu=gpu)
    needed = dict.fromkeys(path for path in _paths_to_read() if not _is_in_system(path))
    own = {"tmp": "/tmp", "shm": "/dev/shm", "lent": str(cache)}  # noqa: S108 - mounted anew
    passed = [f for path in (*needed, *own.values(), str(scratch)) for f in _parents_of(path)]
    for name, inside in own.items():
        (scratch / name).mkdir()
        if name == "lent":  # folders on the way, for all to pass: bubblewrap makes root's alone
            command += [text for folder in dict.fromkeys(passed) for text in ("--dir", folder)]
        command += ["--bind", str(scratch / name), inside]
    for path in needed:
        command += ["--ro-bind", path, path]
    command += ["--bind", str(scratch), str(scratch), "--remount-ro", "/dev", "--remount-ro", "/"]
    return [*command, "--chdir", "/"]  # the worker goes into its folder itself: it is not root's


def _system_mounts(*, gpu: bool) -> list[str]:
    """Mount the system's libraries, a fresh /proc and /dev and, with ``gpu``, the GPU's devices."""
    command: list[str] = []
    for folder in _SYSTEM:
        if Path(folder).is_symlink():
            command += ["--symlink", str(Path(folder).readlink()), folder]
        else:
            command += ["--ro-bind-try", folder, folder]
    visible = [f"/etc/{name}" for name in _FROM_ETC]
    visible += [f"/proc/{name}" for name in _KERNEL_CONTROLS]
    command += ["--dir", "/etc", "--proc", "/proc", "--dev", "/dev"]
    if gpu:
        visible += _GPU_FACTS
        for folder in ("/sys", "/sys/bus", "/sys/class"):  # for all to pass, as above
            command += ["--dir", folder]
        for node in sorted(Path("/dev").glob("nvidia*")):
            command += ["--dev-bind", str(node), str(node)]
    for path in visible:
        command += ["--ro-bind-try", path, path]
    return command


def _is_in_system(path: str) -> bool:
    """Tell whether a path's folder is mounted anyway; CUDA's link in /usr/local is."""
    return any(Path(path).is_relative_to(folder) for folder in _SYSTEM)


def _parents_of(path: str) -> list[str]:
    """List the folders above a path, the outermost first, without those of the system."""
    folders = [str(folder) for folder in reversed(Path(path).parents)][1:]
    return [] if folders and folders[0] in (*_SYSTEM, "/dev") else folders


def _paths_to_read() -> Iterator[str]:
    """List paths that a worker must read wherever they lie."""
    import kernel_archive

    executable = Path(sys.executable)
    folders = [sys.base_prefix, sys.prefix, str(executable.resolve().parents[1])]
    yield from folders
    while executable.is_symlink():
        if not any(executable.is_relative_to(folder) for folder in (*folders, *_SYSTEM)):
            yield str(executable)
        executable = executable.parent / executable.readlink()
    packages = [p for p in sys.path if p.endswith(("site-packages", "dist-packages"))]
    yield from (p for p in packages if Path(p).is_dir())
    yield from (str(Path(file).parent) for file in (__file__, str(kernel_archive.__file__)))
    for name in _PATHS_OF_COMPILERS:
        for text in os.environ.get(name, "").split(os.pathsep):
            path = Path(text)
            if path.parent.name == "bin" and path.is_file():  # a compiler calls others beside it
                path = path.parents[1]
            if path.is_absolute() and path.exists() and not Path.home().is_relative_to(path):
                yield str(path)


@functools.cache
def why_not_isolated() -> str | None:
    """Say why programs cannot be isolated here; ``None`` where they can. Tries it once."""
    if sys.platform != "linux":
        return "bubblewrap exists on Linux alone"
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed (package bubblewrap)"
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as rules:
        scratch = Path(folder).resolve() / "scratch"
        scratch.mkdir()
        give_to_worker(scratch)
        try:
            write_filter(rules.fileno())
            command = bubblewrap_command(scratch, cache=scratch.with_name("c"), gpu=False)
            command += ["--seccomp", str(rules.fileno()), "--", sys.executable, "-c", ""]
            done = subprocess.run(
                command,
                pass_fds=[rules.fileno()],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
        except IsolationError as error:
            return str(error)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"bwrap does not run: {error}"
    said = done.stderr.strip().splitlines() or ["it says nothing"]
    return f"bwrap does not work here: {said[-1]}" if done.returncode else None


def require_isolation() -> None:
    """Raise an ``IsolationError``, with reason and ways out, where programs cannot be isolated."""
    reason = why_not_isolated()
    if reason is not None:
        raise IsolationError(
            f"Programs run isolated by bubblewrap, and {reason}. "
            "Make it work, or pass --trusted to run programs of your own without any isolation."
        )


def give_to_worker(folder: Path) -> None:
    """Give a folder to the user that workers become."""
    user = worker_user()
    if user is not None:
        os.chown(folder, user, user, follow_symlinks=False)


# ---------------------------------------------------------------- what a worker does to itself
def protect_process() -> None:
    """End with the driver, and let no other process look into this one."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def limit_resources(settings: Settings) -> str:
    """Limit files and processor time of this process and its children; says the limits in words."""
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: settings.output_mb * 2**20,
        resource.RLIMIT_NOFILE: 4096,
        resource.RLIMIT_CPU: int(20 * settings.timeout_s * settings.candidates_per_worker) + 600,
    }
    for which, value in limits.items():
        _, hard = resource.getrlimit(which)
        wanted = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (wanted, wanted))
    return f"files {settings.output_mb} MB, no core, 4096 open"


# ---------------------------------------------------------------- the environment
_KEPT: Final = (
    "PATH", "LANG", "LC_ALL", "VIRTUAL_ENV", *_PATHS_OF_COMPILERS,
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES",
)  # fmt: skip


def worker_environment(scratch: Path) -> dict[str, str]:
    """Make a worker's environment: its own folder is home, temporary folder and compiler cache."""
    cache = scratch / "cache"
    return {
        **{name: os.environ[name] for name in _KEPT if name in os.environ},
        "HOME": str(scratch),
        "USER": "worker",
        "TMPDIR": str(scratch),
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "TORCH_EXTENSIONS_DIR": str(cache / "extensions"),
        "CUDA_CACHE_PATH": str(cache / "driver"),
        "PYTHONHASHSEED": "0",
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "MAX_JOBS": "1",
        "OMP_NUM_THREADS": "1",
        "CUDA_DEVICE_MAX_CONNECTIONS": "8",
        # Static variables of C++ templates are unique symbols of the whole process: a program would
        # find the function attributes that an earlier one with the same kernel names has set.
        "NVCC_APPEND_FLAGS": "-Xcompiler -fno-gnu-unique",
    }
