"""Attacks on the machine that measures, one function each: what the README's table claims.

The first line of a function's docstring is its row. It raises where it is stopped and returns where
it got through; its source runs inside a program under test, so it imports what it needs. ``facts``
says what there is to attack:

    driver, address   process id of the driver, and where a secret of 16 bytes lies in its memory
    descriptor        number of a file that the driver has open
    worker            process id of another worker
    home, secret      a file of the user, and what stands in it and in the driver's memory
    outside           a path that is not the program's
    sockets           local sockets on which somebody listens
    packages          the folder of installed packages
    cache             the folder of another program's compiler cache
    mark              a word that a process carries in its command line, to be found again
"""

# They use what a program would use:
# ruff: noqa: PTH103, PTH107, PTH110, PTH112, PTH118, PTH120, PTH123, PTH208
from __future__ import annotations

import inspect
import os
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["ATTACKS", "Attack", "facts_of", "table"]


class Attack(NamedTuple):
    """One attack, and whether bubblewrap stops it."""

    function: Callable[[dict], None]
    stopped: bool

    @property
    def name(self) -> str:
        """Name of the function."""
        return self.function.__name__

    @property
    def source(self) -> str:
        """The function without its decorator."""
        text = inspect.getsource(self.function)
        return text[text.index("def ") :]


ATTACKS: list[Attack] = []


def attack(*, stopped: bool = True) -> Callable[[Callable[[dict], None]], Callable[[dict], None]]:
    """Register an attack."""

    def register(function: Callable[[dict], None]) -> Callable[[dict], None]:
        ATTACKS.append(Attack(function, stopped))
        return function

    return register


def facts_of(folder: Path, secret: str, address: int, descriptor: int) -> dict[str, object]:
    """What there is to attack in a folder, where the user's file is made."""
    home = folder / "home"
    home.write_text(secret)
    return {
        "driver": os.getpid(),
        "address": address,
        "secret": secret,
        "descriptor": descriptor,
        "home": str(home),
        "outside": str(folder / "outside"),
        "cache": str(folder / "cache" / "another"),
        "mark": f"mark-{secret}",
        "file_limit": 2**20,
    }


def table() -> str:
    """The README's table."""
    words = {True: "stopped", False: "**not stopped**"}
    rows = [
        f"| {a.function.__doc__.strip().splitlines()[0].rstrip('.')} | {words[a.stopped]} |"
        for a in ATTACKS
    ]
    return "\n".join(["| a program that tries to | in bubblewrap |", "| --- | --- |", *rows])


@attack()
def open_a_network_socket(facts):
    """Open a network socket (IPv4, IPv6, netlink, raw), itself or in a process that it starts."""
    import socket
    import subprocess
    import sys

    opened = []
    for family in (socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK, socket.AF_PACKET):
        try:
            opened.append(
                socket.socket(
                    family, socket.SOCK_RAW if family >= socket.AF_NETLINK else socket.SOCK_STREAM
                )
            )
        except OSError:
            continue
    child = subprocess.run(
        [sys.executable, "-c", "import socket; socket.socket()"], capture_output=True
    )
    if not opened and child.returncode:
        raise PermissionError("no socket")


@attack()
def read_the_drivers_environment(facts):
    """Read the driver's environment: tokens, keys."""
    with open(f"/proc/{facts['driver']}/environ", "rb") as file:
        assert file.read()


@attack()
def read_the_drivers_memory(facts):
    """Read the driver's memory (`/proc/PID/mem`, `process_vm_readv`)."""
    import ctypes

    try:
        with open(f"/proc/{facts['driver']}/mem", "rb") as file:
            file.seek(facts["address"])
            got = file.read(16)
    except OSError:
        libc = ctypes.CDLL(None, use_errno=True)
        buffer = ctypes.create_string_buffer(16)
        here = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 16)
        there = (ctypes.c_void_p * 2)(facts["address"], 16)
        if libc.process_vm_readv(facts["driver"], here, 1, there, 1, 0) != 16:
            raise PermissionError(ctypes.get_errno(), "process_vm_readv") from None
        got = buffer.raw
    assert got == facts["secret"].encode()


@attack()
def write_the_drivers_memory(facts):
    """Write into the driver's memory (`/proc/PID/mem`, `process_vm_writev`)."""
    import ctypes

    try:
        with open(f"/proc/{facts['driver']}/mem", "r+b", buffering=0) as file:
            file.seek(facts["address"])
            file.write(b"x" * 16)
    except OSError:
        libc = ctypes.CDLL(None, use_errno=True)
        buffer = ctypes.create_string_buffer(b"x" * 16)
        here = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 16)
        there = (ctypes.c_void_p * 2)(facts["address"], 16)
        if libc.process_vm_writev(facts["driver"], here, 1, there, 1, 0) != 16:
            raise PermissionError(ctypes.get_errno(), "process_vm_writev") from None


@attack()
def take_the_drivers_files(facts):
    """Take files that the driver has open (`pidfd_getfd`, `/proc/PID/fd`)."""
    import ctypes
    import os

    try:
        with open(f"/proc/{facts['driver']}/fd/{facts['descriptor']}", "rb") as file:
            file.read(1)
    except OSError:
        pidfd = os.pidfd_open(facts["driver"])
        if ctypes.CDLL(None, use_errno=True).syscall(438, pidfd, facts["descriptor"], 0) < 0:
            raise PermissionError(ctypes.get_errno(), "pidfd_getfd") from None


@attack()
def trace_the_driver(facts):
    """Trace the driver (`ptrace`)."""
    import ctypes

    seize = 0x4206
    if ctypes.CDLL(None, use_errno=True).ptrace(seize, facts["driver"], None, None) != 0:
        raise PermissionError(ctypes.get_errno(), "ptrace")


@attack()
def look_into_another_worker(facts):
    """Look into another worker: its environment, its memory."""
    with open(f"/proc/{facts['worker']}/environ", "rb") as file:
        assert file.read()


@attack()
def mount_a_file_system(facts):
    """Mount a file system (`mount`; `fsopen`, `fsmount`, `move_mount`; `open_tree`)."""
    import ctypes
    import os

    libc = ctypes.CDLL(None, use_errno=True)
    os.makedirs("mounted", exist_ok=True)
    old = libc.mount(b"tmpfs", b"mounted", b"tmpfs", 0, None) == 0
    if old:
        libc.umount2(b"mounted", 2)
    context = libc.syscall(430, b"tmpfs", 0)
    libc.syscall(431, context, 6, None, None, 0)
    new = context >= 0 and libc.syscall(432, context, 0, 0) >= 0
    tree = libc.syscall(428, -100, b"/", 1) >= 0
    if not (old or new or tree):
        raise PermissionError(ctypes.get_errno(), "mount")


@attack()
def enter_new_namespaces(facts):
    """Make namespaces of its own, in which it would be root (`unshare`, `clone`, `clone3`)."""
    import ctypes
    import os
    import struct

    libc = ctypes.CDLL(None, use_errno=True)
    user, number = 0x10000000, {"x86_64": 56, "aarch64": 220}[os.uname().machine]
    for call in (
        lambda: libc.syscall(number, user | 17, None, None, None, None),
        lambda: libc.syscall(435, struct.pack("8Q", user, 0, 0, 0, 17, 0, 0, 0), 64),
    ):
        child = call()
        if child == 0:
            os._exit(0)
        if child > 0:
            os.waitpid(child, 0)
            return
    if libc.unshare(user) != 0:
        raise PermissionError(ctypes.get_errno(), "unshare")


@attack()
def reach_into_the_kernel(facts):
    """Reach for parts of the kernel that have been broken into before."""
    import ctypes
    import os

    libc = ctypes.CDLL(None, use_errno=True)
    x86 = os.uname().machine == "x86_64"
    calls = {
        "bpf": (321 if x86 else 280, 0, bytes(128), 128),
        "io_uring_setup": (425, 4, ctypes.create_string_buffer(120)),
        "userfaultfd": (323 if x86 else 282, 0),
        "keyctl": (250 if x86 else 219, 0, -4, 1),
    }
    got = []
    for name, arguments in calls.items():
        ctypes.set_errno(0)
        if libc.syscall(*arguments) >= 0 or ctypes.get_errno() not in (1, 38):
            got.append(name)
    if not got:
        raise PermissionError("none of them")


@attack()
def outlive_its_run(facts):
    """Outlive its run (`fork`, `setsid`, `fork` again; a child that counts as the driver's)."""
    import ctypes
    import os
    import subprocess
    import sys
    import time

    sleep = [sys.executable, "-c", "import time; time.sleep(60)", facts["mark"]]
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            subprocess.Popen(sleep, start_new_session=True)
            time.sleep(60)
        os._exit(0)
    os.wait()
    parents, number = 0x8000, {"x86_64": 56, "aarch64": 220}[os.uname().machine]
    if ctypes.CDLL(None).syscall(number, parents | 17, None, None, None, None) == 0:
        os.setsid()
        os.execv(sleep[0], sleep)
    time.sleep(0.3)


@attack()
def outlive_its_worker(facts):
    """Outlive a worker that it ends itself."""
    import os
    import subprocess
    import sys
    import time

    subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)", facts["mark"]], start_new_session=True
    )
    if os.fork() == 0:
        os.setsid()
        time.sleep(60)
    time.sleep(0.3)
    os._exit(0)


@attack()
def hold_memory_in_a_child(facts):
    """Hold more memory than it may, in children and their children."""
    import os
    import time

    if os.fork() == 0:
        if os.fork() == 0:
            keep = bytearray(facts["bytes"])
            keep[::4096] = bytes(len(keep[::4096]))
            time.sleep(30)
        os._exit(0)
    os.wait()
    time.sleep(3)


@attack()
def hold_memory_behind_an_ended_thread(facts):
    """Hold more memory than it may in a child whose first thread has ended."""
    import ctypes
    import os
    import threading
    import time

    if os.fork() == 0:

        def hold():
            keep = bytearray(facts["bytes"])
            keep[::4096] = bytes(len(keep[::4096]))
            time.sleep(30)

        threading.Thread(target=hold).start()
        libc, end = ctypes.CDLL(None), {"x86_64": 60, "aarch64": 93}[os.uname().machine]
        libc.syscall(end, 0)
    time.sleep(4)


@attack()
def find_a_process_without_filter(facts):
    """Find a process in its namespace that has no filter, such as bubblewrap's own."""
    import os

    for name in os.listdir("/proc"):
        if name.isdigit():
            with open(f"/proc/{name}/status") as file:
                if "Seccomp:\t0" in file.read():
                    return
    raise PermissionError("every process has one")


@attack()
def write_into_process_1(facts):
    """Write code into process 1 of its namespace, itself or from a child (`/proc/1/mem`)."""
    import ctypes
    import os

    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # that others may look into it

    def write():
        with open("/proc/1/mem", "r+b", buffering=0):
            pass

    child = os.fork()
    if child == 0:
        try:
            write()
        except OSError:
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        write()


@attack()
def change_the_kernel(facts):
    """Change how the kernel runs (`/proc/sys`, `/proc/sysrq-trigger`, `/sys`)."""
    opened = []
    for path in (
        "/proc/sys/kernel/core_pattern",
        "/proc/sysrq-trigger",
        "/sys/kernel/uevent_helper",
    ):
        try:
            with open(path, "r+b", buffering=0):
                opened.append(path)
        except OSError:
            continue
    if not opened:
        raise PermissionError("read-only")


@attack()
def be_root(facts):
    """Be root, or become it (`setuid`, capabilities)."""
    import os

    with open("/proc/self/status") as file:
        capable = any(int(line.split()[1], 16) for line in file if line[:6] in ("CapEff", "CapPrm"))
    if os.getuid() and not capable:
        os.setresuid(0, 0, 0)


@attack()
def spoil_the_interpreter(facts):
    """Write where the next worker starts from (`.pth` in site-packages, the standard library)."""
    import os

    written = []
    for folder in (facts["packages"], os.path.dirname(os.__file__)):
        try:
            with open(os.path.join(folder, "spoiled.pth"), "w") as file:
                written.append(file.name)
            os.remove(written[-1])
        except OSError:
            continue
    if not written:
        raise PermissionError("read-only")


@attack()
def leave_a_message_queue(facts):
    """Leave a message queue behind (POSIX, System V)."""
    import ctypes
    import os

    libc, x86 = ctypes.CDLL(None, use_errno=True), os.uname().machine == "x86_64"
    queue = libc.syscall(240 if x86 else 180, b"left", os.O_CREAT | os.O_RDWR, 0o600, None)
    other = libc.syscall(68 if x86 else 186, 0, 0o1600)
    libc.syscall(241 if x86 else 181, b"left")
    if queue < 0 and other < 0:
        raise PermissionError(ctypes.get_errno(), "mq_open, msgget")


@attack()
def limit_another_process(facts):
    """Change the limits of another process (`prlimit`)."""
    import resource

    resource.prlimit(facts["driver"], resource.RLIMIT_NOFILE)


@attack()
def outlive_its_driver(facts):
    """Take back that it ends with its driver (`prctl`)."""
    import ctypes
    import os

    libc, number = ctypes.CDLL(None), {"x86_64": 157, "aarch64": 167}[os.uname().machine]
    for option in (1, 2**32 + 1):  # the kernel looks at the lower half
        libc.syscall(number, ctypes.c_ulong(option), 0, 0, 0, 0)
    left = ctypes.c_int()
    libc.prctl(2, ctypes.byref(left), 0, 0, 0)
    if left.value:
        raise PermissionError("it still ends")


@attack()
def write_a_large_file(facts):
    """Write a file over the limit."""
    with open("large", "wb") as file:
        file.write(bytes(facts["file_limit"] + 1))


@attack()
def leave_shared_memory_behind(facts):
    """Leave memory behind that outlives its process (System V)."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    segment = libc.shmget(0, 4096, 0o1600)
    if segment < 0:
        raise PermissionError(ctypes.get_errno(), "shmget")
    libc.shmctl(segment, 0, None)


@attack()
def signal_the_driver(facts):
    """Send the driver a signal, or another process of the user."""
    import os

    os.kill(facts["driver"], 0)


@attack()
def list_other_processes(facts):
    """See which other processes run, and with which command lines."""
    import os

    assert os.path.exists(f"/proc/{facts['driver']}/cmdline")


@attack()
def talk_to_a_local_socket(facts):
    """Talk to another process by a local socket (in `/tmp`, `/var`, `/opt`)."""
    import socket

    reached = []
    for path in facts["sockets"]:
        with socket.socket(socket.AF_UNIX) as client:
            try:
                client.connect(path)
            except OSError:
                continue
            reached.append(path)
    if not reached:
        raise PermissionError("no socket")


@attack()
def write_outside_its_folder(facts):
    """Write outside its folder."""
    with open(facts["outside"], "w") as file:
        file.write("x")


@attack()
def plant_a_compiled_program(facts):
    """Plant a compiled binary for another program."""
    import os

    assert os.path.isdir(facts["cache"])
    with open(os.path.join(facts["cache"], "planted"), "w") as file:
        file.write("x")


@attack()
def read_the_users_files(facts):
    """Read files in the user's home and in temporary folders."""
    with open(facts["home"]) as file:
        assert file.read() == facts["secret"]


@attack()
def read_the_systems_files(facts):
    """Read other files of the system (`/etc/passwd`)."""
    with open("/etc/passwd") as file:
        assert file.read()


@attack(stopped=False)
def fill_the_disk(facts):
    """Write many files below the limit."""
    for i in range(3):
        with open(f"part{i}", "wb") as file:
            file.write(bytes(facts["file_limit"]))


@attack(stopped=False)
def judge_itself(facts):
    """Change what checks and times it: both are in its process."""
    from kernel_measure import evaluate

    evaluate.Evaluator.warm = evaluate.Evaluator.warm


if __name__ == "__main__":
    print(table())
