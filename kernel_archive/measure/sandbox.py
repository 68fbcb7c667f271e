"""What a program under test is kept from, and how: bubblewrap where it exists, a system call filter everywhere.

``bubblewrap()`` gives the command that starts a worker in namespaces of its own: other processes, the network, mounts
and shared memory do not exist for it, the file system is read-only, home and temporary folders are empty, and nothing
outlives it. Where bubblewrap is missing or not permitted, a worker confines itself alone, in two steps: ``surrender``
at its very start, while it has one thread, and ``confine`` once the device is set up and before the first program runs.
Both steps are also taken inside bubblewrap. What either stops is stated in README.md, in a table that the tests make.
Only Linux on x86-64 and arm64 has all of it; elsewhere ``confine`` says what is missing.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import glob
import os
import platform
import resource
import shutil
import signal
import site
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kernel_archive.measure.settings import Settings

# ---------------------------------------------------------------- the system call filter
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_PR_SET_CHILD_SUBREAPER: Final = 36
_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_SET_SECCOMP: Final = 22
_SECCOMP_MODE_FILTER: Final = 2
_SECCOMP_FILTER_FLAG_TSYNC: Final = 1
_AF_UNIX: Final = 1
_ALLOW: Final = 0x7FFF0000
_ERRNO: Final = 0x00050000  # the call does nothing and gives this error; 0 pretends that it was done
_X32_BIT: Final = 0x40000000
_CLONE_NEWNET: Final = 0x40000000
#: Flags of clone(2): new namespaces of any kind, and a child that counts as the driver's.
_CLONE_REFUSED: Final = 0x7E020000 | 0x00008000

_MACHINES: Final = ("x86_64", "aarch64")
_ARCHITECTURE: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
#: Number of each call on the machines above. Refused in any form:
_REFUSED: Final = {
    # looking into other processes
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440), "kcmp": (312, 272), "perf_event_open": (298, 241),
    # file systems and namespaces
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "unshare": (272, 97),
    "setns": (308, 268), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467), "open_by_handle_at": (304, 265),
    # the kernel itself
    "reboot": (169, 142), "init_module": (175, 105), "finit_module": (313, 273), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "bpf": (321, 280), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    # keys of the user, and memory that outlives its process
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "shmget": (29, 194), "msgget": (68, 186),
    "semget": (64, 190),
}  # fmt: skip
_SOCKET: Final = (41, 198)
_CLONE: Final = (56, 220)
_CLONE3: Final = (435, 435)
_PRCTL: Final = (157, 167)
_SECCOMP: Final = (317, 277)
#: These pretend to succeed, so that all that a program starts stays in the worker's process group and ends with it.
_PRETENDED: Final = {"setpgid": (109, 154), "setsid": (112, 157)}


def _statement(code: int, k: int) -> bytes:
    return struct.pack("HBBI", code, 0, 0, k)


def _answer(value: int) -> bytes:
    return _statement(0x06, value)


def _load(offset: int) -> bytes:
    """Load a word of the call's description: 0 its number, 4 the architecture, 16 its first argument."""
    return _statement(0x20, offset)


def _when(test: int, k: int, then: list[bytes]) -> bytes:
    """Do ``then`` when the test (0x15 equal, 0x35 at least, 0x45 has a bit) holds for the loaded word, else go on."""
    body = b"".join(then)
    return struct.pack("HBBI", test, 0, len(body) // 8, k) + body


def filter_program(machine: str) -> bytes | None:
    """The seccomp filter as BPF instructions; ``None`` on a machine (``platform.machine()``) whose call numbers are not known here."""
    if machine not in _MACHINES:
        return None
    column = _MACHINES.index(machine)
    refuse, argument = _answer(_ERRNO | errno.EPERM), _load(16)
    code = [
        _load(4), struct.pack("HBBI", 0x15, 1, 0, _ARCHITECTURE[machine]), refuse,
        _load(0), _when(0x35, _X32_BIT, [refuse]),  # calls of the x32 interface have numbers of their own
        *(_when(0x15, numbers[column], [refuse]) for numbers in _REFUSED.values()),
        *(_when(0x15, numbers[column], [_answer(_ERRNO)]) for numbers in _PRETENDED.values()),
        # The C library falls back to clone, whose flags can be seen here; those of clone3 lie in memory.
        _when(0x15, _CLONE3[column], [_answer(_ERRNO | errno.ENOSYS)]),
        _when(0x15, _CLONE[column], [argument, _when(0x45, _CLONE_REFUSED, [refuse]), _answer(_ALLOW)]),
        _when(0x15, _PRCTL[column], [argument, _when(0x15, _PR_SET_CHILD_SUBREAPER, [refuse]), _answer(_ALLOW)]),
        _when(0x15, _SOCKET[column], [argument, _when(0x15, _AF_UNIX, [_answer(_ALLOW)]), refuse]),
        _answer(_ALLOW),
    ]  # fmt: skip
    return b"".join(code)


def _install_filter(libc: ctypes.CDLL) -> bool:
    """Install the filter for every thread of this process."""
    machine = platform.machine()
    program = filter_program(machine)
    if program is None or libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return False
    buffer = ctypes.create_string_buffer(program, len(program))

    class _Program(ctypes.Structure):
        _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_void_p))

    header = _Program(len(program) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    number = _SECCOMP[_MACHINES.index(machine)]
    if libc.syscall(number, 1, _SECCOMP_FILTER_FLAG_TSYNC, ctypes.byref(header)) == 0:
        return True
    return bool(libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(header), 0, 0) == 0)


def _block_sockets_in_python() -> None:
    """The last resort where no filter can be installed: Python code at least gets no socket."""
    import socket

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "the network is not available to a kernel")

    socket.socket.__init__ = refuse  # type: ignore[method-assign] # that is the purpose


# ---------------------------------------------------------------- what a worker does to itself, and the driver to itself
def _libc() -> ctypes.CDLL | None:
    return ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def hide_from_workers() -> None:
    """Let no process without privileges look into this one: the driver, while workers run beside it unseparated.

    Its memory, its environment and its open files are no longer to be had through ``/proc``; it leaves no core dump.
    """
    libc = _libc()
    if libc is not None:
        libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def surrender() -> bool:
    """The first step, at the start of a worker and while it has one thread, since it binds threads one by one.

    The worker ends with its driver, adopts what its children leave behind, gets a network namespace of its own where it
    may, gives up all capabilities of root and can't be looked into by other workers. Returns whether it has that namespace.
    """
    libc = _libc()
    if libc is None:
        return False
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    namespace = bool(libc.unshare(_CLONE_NEWNET) == 0)
    libc.capset(struct.pack("Ii", 0x20080522, 0), bytes(24))
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    return namespace


def confine(settings: Settings, *, bubblewrapped: bool, namespace: bool) -> dict[str, str]:
    """The second step, for good, after ``surrender`` returned ``namespace``. What was achieved is recorded with every run.

    ``isolation``: ``bubblewrap``, ``filter`` (system calls only) or ``none``; ``network``: ``seccomp`` and ``namespace``, or
    ``python`` (weak); ``limits``: the resource limits.
    """
    size = settings.output_mb * 2**20
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: size,
        resource.RLIMIT_NOFILE: 4096,
        resource.RLIMIT_CPU: int(20 * settings.timeout_s * settings.candidates_per_worker) + 600,
    }
    for which, value in limits.items():
        _, hard = resource.getrlimit(which)
        wanted = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (wanted, wanted))
    libc = _libc()
    filtered = libc is not None and _install_filter(libc)
    network = [name for name, on in (("seccomp", filtered), ("namespace", bubblewrapped or namespace)) if on]
    if not network:
        _block_sockets_in_python()
    return {
        "isolation": "bubblewrap" if bubblewrapped else "filter" if filtered else "none",
        "network": "+".join(network) or "python",
        "limits": f"files {settings.output_mb} MB, no core, 4096 open",
    }


# ---------------------------------------------------------------- bubblewrap
_NAMESPACES: Final = ("--unshare-all", "--die-with-parent", "--cap-drop", "ALL", "--ro-bind", "/", "/")
#: Folders that hold what is the user's or another program's; a worker finds them empty, but for what it runs on.
_EMPTIED: Final = ("/home", "/root", "/run", "/var/tmp", "/mnt", "/media", "/srv")  # noqa: S108 - mounted anew


@functools.cache
def bubblewrap() -> str | None:
    """The path of ``bwrap`` when it works here; ``None`` also when ``KERNEL_ARCHIVE_NO_BWRAP`` is set."""
    program = None if os.environ.get("KERNEL_ARCHIVE_NO_BWRAP") else shutil.which("bwrap")
    if program is None:
        return None
    command = [program, *_NAMESPACES, "--proc", "/proc", "--dev", "/dev", sys.executable, "-c", ""]
    try:
        works = subprocess.run(command, capture_output=True, timeout=30, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        works = False
    return program if works else None


def bubblewrap_command(program: str, scratch: Path, *, cache: Path, gpu: bool) -> list[str]:
    """The command line that stands before a worker's own.

    All that a worker can write to is its folder, in which its ``/tmp``, its ``/dev/shm`` and the compiler caches lie
    that it was lent (``scratch / "lent"``) and sees at ``cache``. With ``gpu`` it gets the GPU's devices.
    """
    command = [program, *_NAMESPACES, "--proc", "/proc", "--dev", "/dev"]
    if gpu:
        for node in sorted(glob.glob("/dev/nvidia*")):  # noqa: PTH207 - texts are what is wanted
            command += ["--dev-bind", node, node]
    emptied = _emptied()
    for folder in emptied:
        command += ["--tmpfs", folder]
    own = {"tmp": "/tmp", "shm": "/dev/shm", "lent": str(cache)}  # noqa: S108 - mounted anew
    for name, inside in own.items():
        (scratch / name).mkdir()
        command += ["--bind", str(scratch / name), inside]
    for path in _runs_on():
        if any(path.is_relative_to(folder) for folder in (*emptied, "/tmp")):  # noqa: S108 - mounted anew
            command += ["--ro-bind", str(path), str(path)]
    command += ["--bind", str(scratch), str(scratch)]
    for folder in ("/dev", *emptied):
        command += ["--remount-ro", folder]
    return [*command, "--chdir", str(scratch)]


def _emptied() -> list[str]:
    """The folders that a worker finds empty.

    Its ``/tmp`` is its own: a home or a temporary folder inside of that is hidden with it, and can't be emptied once more.
    """
    folders = dict.fromkeys(Path(text).resolve() for text in (*_EMPTIED, Path.home(), tempfile.gettempdir()))
    return [
        str(folder)
        for folder in folders
        if folder != Path("/") and folder.is_dir() and not folder.is_relative_to("/tmp")  # noqa: S108 - see above
    ]


def _runs_on() -> list[Path]:
    """What a worker must be able to read wherever it lies: Python, installed packages, this one, compilers' folders."""
    texts = [sys.prefix, sys.base_prefix, str(Path(sys.executable).resolve().parents[1])]
    texts += [str(Path(__file__).resolve().parents[2]), *site.getsitepackages(), site.getusersitepackages()]
    for name in ("PYTHONPATH", *_KEPT):
        if name != "PATH":
            texts += os.environ.get(name, "").split(os.pathsep)
    paths = (Path(text) for text in dict.fromkeys(texts) if os.path.isabs(text))  # noqa: PTH117 - texts are at hand
    return [path for path in paths if path.exists()]


# ---------------------------------------------------------------- the environment
_KEPT: Final = (
    "PATH", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "LANG", "LC_ALL",
    "TRITON_PTXAS_PATH", "VIRTUAL_ENV", "CC", "CXX", "LIBRARY_PATH", "CPATH", "TRITON_LIBCUDA_PATH",
    "NVIDIA_VISIBLE_DEVICES",
)  # fmt: skip


def environment(scratch: Path) -> dict[str, str]:
    """The environment of a worker: a few variables that compilers and drivers need, everything else dropped.

    Its own folder is its home, its temporary folder, and where its compilers keep what they made.
    """
    cache = scratch / "cache"
    return {
        **{name: os.environ[name] for name in _KEPT if name in os.environ},
        "HOME": str(scratch),
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
        # Static variables of C++ templates are unique symbols of the whole process, whatever library they come from: a
        # program would find the function attributes that an earlier one with the same kernel names has set.
        "NVCC_APPEND_FLAGS": "-Xcompiler -fno-gnu-unique",
    }
