"""Attacks on the machine that measures, one function each: what the README's table claims.

The first line of a function's docstring is its row. It raises where it is stopped and returns where
it got through; its source runs inside a program under test, behind that of ``TOOLS``. ``facts``
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

from __future__ import annotations

import ctypes
import inspect
import os
import resource
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

__all__ = ["ATTACKS", "Attack", "facts_of", "table"]

#: What attacks share: lines that a program under test begins with, and functions.
START = """
import ctypes, os, resource, socket, struct, subprocess, sys, threading, time
from pathlib import Path
"""


def libc():
    """The C library, which keeps the error of its last call."""
    return ctypes.CDLL(None, use_errno=True)


def number(x86, arm):
    """A system call's number on this machine."""
    return x86 if os.uname().machine == "x86_64" else arm


def refuse(what):
    """Raise what the C library's last call failed with."""
    raise PermissionError(ctypes.get_errno(), what)


def any_of(attempt, targets):
    """Attempt all targets; raises where each is refused."""
    reached = 0
    for target in targets:
        try:
            attempt(target)
            reached += 1
        except OSError:
            continue
    if not reached:
        raise PermissionError("all refused")


def transfer(call, facts, buffer):
    """Have the kernel copy between a buffer and the secret in the driver's memory."""
    here = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 16)
    there = (ctypes.c_void_p * 2)(facts["address"], 16)
    if getattr(libc(), call)(facts["driver"], here, 1, there, 1, 0) != 16:
        refuse(call)


def sleeper(facts):
    """The command line of a process that can be found again."""
    return [sys.executable, "-c", "import time; time.sleep(60)", facts["mark"]]


def hold(size):
    """Hold memory for a while."""
    keep = bytearray(size)
    keep[::4096] = bytes(len(keep[::4096]))
    time.sleep(30)


TOOLS = (libc, number, refuse, any_of, transfer, sleeper, hold)


class Attack(NamedTuple):
    """One attack."""

    function: Callable[[dict], None]

    @property
    def name(self) -> str:
        """Name of the function."""
        return self.function.__name__

    @property
    def stopped(self) -> bool:
        """Whether bubblewrap stops it."""
        return self.name not in ("fill_the_disk", "judge_itself")

    @property
    def source(self) -> str:
        """The function without its decorator, behind what it uses."""
        sources = map(inspect.getsource, (*TOOLS, self.function))
        return "\n".join([START, *sources]).replace("@attack\n", "")


ATTACKS: list[Attack] = []


def attack(function: Callable[[dict], None]) -> Callable[[dict], None]:
    """Register an attack."""
    ATTACKS.append(Attack(function))
    return function


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


@attack
def open_a_network_socket(facts):
    """Open a network socket (IPv4, IPv6, netlink, raw), itself or in a process that it starts."""

    def open_one(family):
        kind = socket.SOCK_RAW if family >= socket.AF_NETLINK else socket.SOCK_STREAM
        socket.socket(family, kind).close()

    child = subprocess.run(
        [sys.executable, "-c", "import socket; socket.socket()"], capture_output=True
    )
    if child.returncode:
        any_of(open_one, (socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK, socket.AF_PACKET))


@attack
def read_the_drivers_environment(facts):
    """Read the driver's environment: tokens, keys."""
    assert Path(f"/proc/{facts['driver']}/environ").read_bytes()


@attack
def read_the_drivers_memory(facts):
    """Read the driver's memory (`/proc/PID/mem`, `process_vm_readv`)."""
    try:
        with Path(f"/proc/{facts['driver']}/mem").open("rb") as file:
            file.seek(facts["address"])
            got = file.read(16)
    except OSError:
        buffer = ctypes.create_string_buffer(16)
        transfer("process_vm_readv", facts, buffer)
        got = buffer.raw
    assert got == facts["secret"].encode()


@attack
def write_the_drivers_memory(facts):
    """Write into the driver's memory (`/proc/PID/mem`, `process_vm_writev`)."""
    try:
        with Path(f"/proc/{facts['driver']}/mem").open("r+b", buffering=0) as file:
            file.seek(facts["address"])
            file.write(b"x" * 16)
    except OSError:
        transfer("process_vm_writev", facts, ctypes.create_string_buffer(b"x" * 16))


@attack
def take_the_drivers_files(facts):
    """Take files that the driver has open (`pidfd_getfd`, `/proc/PID/fd`)."""
    try:
        with Path(f"/proc/{facts['driver']}/fd/{facts['descriptor']}").open("rb") as file:
            file.read(1)
    except OSError:
        if libc().syscall(438, os.pidfd_open(facts["driver"]), facts["descriptor"], 0) < 0:
            refuse("pidfd_getfd")


@attack
def trace_the_driver(facts):
    """Trace the driver (`ptrace`)."""
    seize = 0x4206
    if libc().ptrace(seize, facts["driver"], None, None) != 0:
        refuse("ptrace")


@attack
def look_into_another_worker(facts):
    """Look into another worker: its environment, its memory."""
    assert Path(f"/proc/{facts['worker']}/environ").read_bytes()


@attack
def mount_a_file_system(facts):
    """Mount a file system (`mount`; `fsopen`, `fsmount`, `move_mount`; `open_tree`)."""
    Path("mounted").mkdir(exist_ok=True)
    old = libc().mount(b"tmpfs", b"mounted", b"tmpfs", 0, None) == 0
    if old:
        libc().umount2(b"mounted", 2)
    context = libc().syscall(430, b"tmpfs", 0)
    libc().syscall(431, context, 6, None, None, 0)
    new = context >= 0 and libc().syscall(432, context, 0, 0) >= 0
    tree = libc().syscall(428, -100, b"/", 1) >= 0
    if not (old or new or tree):
        refuse("mount")


@attack
def enter_new_namespaces(facts):
    """Make namespaces of its own, in which it would be root (`unshare`, `clone`, `clone3`)."""
    user = 0x10000000
    for call in (
        lambda: libc().syscall(number(56, 220), user | 17, None, None, None, None),
        lambda: libc().syscall(435, struct.pack("8Q", user, 0, 0, 0, 17, 0, 0, 0), 64),
    ):
        child = call()
        if child == 0:
            os._exit(0)
        if child > 0:
            os.waitpid(child, 0)
            return
    if libc().unshare(user) != 0:
        refuse("unshare")


@attack
def reach_into_the_kernel(facts):
    """Reach for parts of the kernel that have been broken into before."""
    calls = {
        "bpf": (number(321, 280), 0, bytes(128), 128),
        "io_uring_setup": (425, 4, ctypes.create_string_buffer(120)),
        "userfaultfd": (number(323, 282), 0),
        "keyctl": (number(250, 219), 0, -4, 1),
    }
    got = []
    for name, arguments in calls.items():
        ctypes.set_errno(0)
        if libc().syscall(*arguments) >= 0 or ctypes.get_errno() not in (1, 38):
            got.append(name)
    if not got:
        raise PermissionError("none of them")


@attack
def outlive_its_run(facts):
    """Outlive its run (`fork`, `setsid`, `fork` again; a child that counts as the driver's)."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            subprocess.Popen(sleeper(facts), start_new_session=True)
            time.sleep(60)
        os._exit(0)
    os.wait()
    parents = 0x8000
    if libc().syscall(number(56, 220), parents | 17, None, None, None, None) == 0:
        os.setsid()
        os.execv(sys.executable, sleeper(facts))
    time.sleep(0.3)


@attack
def outlive_its_worker(facts):
    """Outlive a worker that it ends itself."""
    subprocess.Popen(sleeper(facts), start_new_session=True)
    if os.fork() == 0:
        os.setsid()
        time.sleep(60)
    time.sleep(0.3)
    os._exit(0)


@attack
def hold_memory_in_a_child(facts):
    """Hold more memory than it may, in children and their children."""
    if os.fork() == 0:
        if os.fork() == 0:
            hold(facts["bytes"])
        os._exit(0)
    os.wait()
    time.sleep(3)


@attack
def hold_memory_behind_an_ended_thread(facts):
    """Hold more memory than it may in a child whose first thread has ended."""
    if os.fork() == 0:
        threading.Thread(target=hold, args=(facts["bytes"],)).start()
        libc().syscall(number(60, 93), 0)
    time.sleep(4)


@attack
def find_a_process_without_filter(facts):
    """Find a process in its namespace that has no filter, such as bubblewrap's own."""
    if not any("Seccomp:\t0" in file.read_text() for file in Path("/proc").glob("[0-9]*/status")):
        raise PermissionError("every process has one")


@attack
def write_into_process_1(facts):
    """Write code into process 1 of its namespace, itself or from a child (`/proc/1/mem`)."""
    libc().prctl(4, 1, 0, 0, 0)  # that others may look into it

    def write():
        Path("/proc/1/mem").open("r+b", buffering=0).close()

    child = os.fork()
    if child == 0:
        try:
            write()
        except OSError:
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        write()


@attack
def change_the_kernel(facts):
    """Change how the kernel runs (`/proc/sys`, `/proc/sysrq-trigger`, `/sys`)."""
    paths = ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/sys/kernel/uevent_helper")
    any_of(lambda path: Path(path).open("r+b", buffering=0).close(), paths)


@attack
def be_root(facts):
    """Be root, or become it (`setuid`, capabilities)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    capable = any(int(line.split()[1], 16) for line in lines if line[:6] in ("CapEff", "CapPrm"))
    if os.getuid() and not capable:
        os.setresuid(0, 0, 0)


@attack
def spoil_the_interpreter(facts):
    """Write where the next worker starts from (`.pth` in site-packages, the standard library)."""

    def spoil(folder):
        path = Path(folder) / "spoiled.pth"
        path.write_text("")
        path.unlink()

    any_of(spoil, (facts["packages"], Path(os.__file__).parent))


@attack
def leave_a_message_queue(facts):
    """Leave a message queue behind (POSIX, System V)."""
    flags = os.O_CREAT | os.O_RDWR
    queue = libc().syscall(number(240, 180), b"left", flags, 0o600, None)
    other = libc().syscall(number(68, 186), 0, 0o1600)
    libc().syscall(number(241, 181), b"left")
    if queue < 0 and other < 0:
        refuse("mq_open, msgget")


@attack
def limit_another_process(facts):
    """Change the limits of another process (`prlimit`)."""
    resource.prlimit(facts["driver"], resource.RLIMIT_NOFILE)


@attack
def outlive_its_driver(facts):
    """Take back that it ends with its driver (`prctl`)."""
    for option in (1, 2**32 + 1):  # the kernel looks at the lower half
        libc().syscall(number(157, 167), ctypes.c_ulong(option), 0, 0, 0, 0)
    left = ctypes.c_int()
    libc().prctl(2, ctypes.byref(left), 0, 0, 0)
    if left.value:
        raise PermissionError("it still ends")


@attack
def write_a_large_file(facts):
    """Write a file over the limit."""
    Path("large").write_bytes(bytes(facts["file_limit"] + 1))


@attack
def leave_shared_memory_behind(facts):
    """Leave memory behind that outlives its process (System V)."""
    segment = libc().shmget(0, 4096, 0o1600)
    if segment < 0:
        refuse("shmget")
    libc().shmctl(segment, 0, None)


@attack
def signal_the_driver(facts):
    """Send the driver a signal, or another process of the user."""
    os.kill(facts["driver"], 0)


@attack
def list_other_processes(facts):
    """See which other processes run, and with which command lines."""
    assert Path(f"/proc/{facts['driver']}/cmdline").exists()


@attack
def talk_to_a_local_socket(facts):
    """Talk to another process by a local socket (in `/tmp`, `/var`, `/opt`)."""

    def connect(path):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)

    any_of(connect, facts["sockets"])


@attack
def write_outside_its_folder(facts):
    """Write outside its folder."""
    Path(facts["outside"]).write_text("x")


@attack
def plant_a_compiled_program(facts):
    """Plant a compiled binary for another program."""
    assert Path(facts["cache"]).is_dir()
    Path(facts["cache"], "planted").write_text("x")


@attack
def read_the_users_files(facts):
    """Read files in the user's home and in temporary folders."""
    assert Path(facts["home"]).read_text() == facts["secret"]


@attack
def read_the_systems_files(facts):
    """Read other files of the system (`/etc/passwd`)."""
    assert Path("/etc/passwd").read_text()


@attack
def fill_the_disk(facts):
    """Write many files below the limit."""
    for i in range(3):
        Path(f"part{i}").write_bytes(bytes(facts["file_limit"]))


@attack
def judge_itself(facts):
    """Change what checks and times it: both are in its process."""
    from kernel_measure import evaluate

    evaluate.Evaluator.warm = evaluate.Evaluator.warm


if __name__ == "__main__":
    print(table())
