"""The first program in a sandbox: gives up rights, then runs the untrusted program once for every input.

Started as `python -I -c SOURCE SETTINGS` by an interpreter that does not see this package, so it imports the standard
library only. Inputs come from standard input, each after a line with its length; to standard output goes, for each run,
a line of JSON and what the program wrote. Whatever that program does to this one harms its own results only.
"""

import contextlib
import ctypes
import json
import os
import pathlib
import resource
import runpy
import select
import selectors
import signal
import struct
import sys
import time
import traceback
from typing import Any, NoReturn

DUMPABLE, SECCOMP, DROP_BOUND, SUBREAPER, NO_NEW_PRIVILEGES = 4, 22, 24, 36, 38
JOIN_SESSION_KEYRING = 1
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
EXECUTE, WRITE_FILE, READ_FILE, READ_FOLDER = 1, 1 << 1, 1 << 2, 1 << 3
RIGHTS = {1: 13, 2: 14, 3: 15, 5: 16}
"""How many rights to files each version of Landlock knows."""
ENOSYS = 38
NAMESPACES = 0x7E020000
"""The flags of `clone` that make namespaces."""
CALLS = {
    "x86_64": (0xC000003E, (101, 310, 311, 308, 200, 297), (56, 272), (62, 234, 129)),
    "aarch64": (0xC00000B7, (117, 270, 271, 268, 130, 240), (220, 97), (129, 131, 138)),
}
"""By machine: its number for audits; ptrace, process_vm_readv and _writev, setns, tkill, rt_tgsigqueueinfo; clone and
unshare; kill, tgkill and rt_sigqueueinfo."""
EVERYWHERE = (424, 425, 435)
"""pidfd_send_signal, io_uring_setup, and clone3, whose flags a filter cannot read: libraries take clone instead."""


def main() -> None:
    settings: dict[str, Any] = json.loads(sys.argv[1])
    source = os.fdopen(os.dup(0), "rb")
    inputs = [source.read(int(line)) for line in iter(source.readline, b"")]
    source.close()
    answers = settings["answers"] = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    with contextlib.suppress(OSError):  # where memory runs out, programs end rather than the trainer
        pathlib.Path("/proc/self/oom_score_adj").write_text("1000")
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # which the first process of a namespace does not get
    libc = ctypes.CDLL(None)
    for capability in range(64):
        libc.prctl(DROP_BOUND, capability, 0, 0, 0)
    if settings["uid"] is not None:
        os.setgroups([])
        os.setgid(settings["uid"])
        os.setuid(settings["uid"])
    libc.capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)())
    libc.prctl(DUMPABLE, 0, 0, 0, 0)  # its memory and descriptors are nobody's, and nobody may trace it
    os.chdir(settings["folder"])
    libc.prctl(SUBREAPER, 1, 0, 0, 0)
    keyctl = {"x86_64": 250, "aarch64": 219}.get(os.uname().machine)
    if keyctl is not None:  # without the keys of the session that started this
        libc.syscall(keyctl, JOIN_SESSION_KEYRING, None)
    if settings["filtered"]:
        refuse(settings)
    late = 0
    described: dict[str, Any] = {}
    for given in inputs:
        described, out, err = run(settings, given) if late < settings["give_up"] else (dict(described), b"", b"")
        late = late + 1 if described["stopped"] == "time" else 0
        described |= {"stdout": len(out), "stderr": len(err)}
        send(answers, json.dumps(described).encode() + b"\n" + out + err)
    os._exit(0)


def run(settings: dict[str, Any], given: bytes) -> tuple[dict[str, Any], bytes, bytes]:
    """Run the program once; returns its status, seconds and what ended it, and its two outputs."""
    stdin = os.memfd_create("stdin")
    send(stdin, given)
    os.lseek(stdin, 0, os.SEEK_SET)
    pipes = [os.pipe(), os.pipe()]
    start = time.monotonic()
    pid = os.fork()
    if pid == 0:
        become(settings, stdin, *(write for _, write in pipes))
    for own in (stdin, *(write for _, write in pipes), *([settings["keep"]] if settings["keep"] else [])):
        os.close(own)
    written, stopped = collect([read for read, _ in pipes], pid, settings)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    seconds = time.monotonic() - start
    clear(settings, pid)
    for read, _ in pipes:
        os.close(read)
    out, err = (bytes(written[read]) for read, _ in pipes)
    return {"status": status, "stopped": stopped, "seconds": seconds}, out, err


def is_over(pid: int, passed: float, settings: dict[str, Any]) -> bool:
    """Whether a process is out of time, without that in which it waited for a core, where the kernel tells."""
    if passed < settings["seconds"]:
        return False
    try:
        waited = int(pathlib.Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        waited = 0.0
    return bool(passed - waited >= settings["seconds"] or passed >= settings["wall"])


def collect(pipes: list[int], pid: int, settings: dict[str, Any]) -> tuple[dict[int, bytearray], str]:
    """Read both outputs until the program ends, or is killed: out of time, too much output, too many processes.

    Also where nobody waits for its answers any longer: after the deadline of all runs, or the end of the trainer.
    """
    start, most, processes = time.monotonic(), settings["output"], settings["processes"]
    written = {pipe: bytearray() for pipe in pipes}
    ended, unread = os.pidfd_open(pid), select.poll()
    unread.register(settings["answers"], 0)
    with selectors.DefaultSelector() as selector:
        for source in (*pipes, ended):
            selector.register(source, selectors.EVENT_READ)
        stopped, counted = "", start
        while not stopped:
            ready = [key.fd for key, _ in selector.select(0.05 if processes is None else 0.01)]
            for pipe in (pipe for pipe in ready if pipe != ended):
                data = os.read(pipe, 1 << 16)
                if not data:
                    selector.unregister(pipe)
                written[pipe] += data
            if any(len(written[pipe]) > most for pipe in pipes):
                stopped = "output"
            elif ended in ready and not any(pipe in ready for pipe in pipes):
                stopped = "ended"
            elif is_over(pid, time.monotonic() - start, settings) or unread.poll(0):
                stopped = "time"
            elif processes is not None and time.monotonic() - counted >= 0.01:
                stopped = "processes" if len(alive(settings)) > processes else ""
                counted = time.monotonic()
    os.close(ended)
    for pipe in pipes:
        del written[pipe][most:]
    if stopped != "ended":
        os.kill(pid, signal.SIGKILL)
    return written, stopped


def alive(settings: dict[str, Any]) -> list[int]:
    """The program's processes and threads."""
    if pathlib.Path("/proc/self").exists():
        return below(os.getpid())[1:]  # orphans are the launcher's own
    newest = os.fork()  # without /proc this is the first process of a namespace, where numbers ascend
    if newest == 0:
        os._exit(0)
    os.waitpid(newest, 0)
    settings["newest"] = max(newest, settings.get("newest", 0))
    kill = ctypes.CDLL(None).kill
    return [pid for pid in range(2, settings["newest"]) if not kill(pid, 0)]


def below(pid: int) -> list[int]:
    """The threads of a process, and of those that it has started, and so on."""
    found = []
    with contextlib.suppress(OSError):
        for thread in pathlib.Path(f"/proc/{pid}/task").iterdir():
            started = [int(child) for child in (thread / "children").read_text().split()]
            found += [int(thread.name), *(each for child in started for each in below(child) or [child])]
    return found


def clear(settings: dict[str, Any], group: int) -> None:
    """Kill what the program has left behind, until nothing is left: what is forked meanwhile, too."""
    with contextlib.suppress(ChildProcessError):
        while True:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            for pid in [-1] if settings["alone"] else [-group, *alive(settings)]:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.001)


def become(settings: dict[str, Any], stdin: int, stdout: int, stderr: int) -> NoReturn:
    """Turn this child into the program."""
    status = 1
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for stream, own in enumerate((stdin, stdout, stderr)):
            os.dup2(own, stream)
        if settings["errors_in_output"]:
            os.dup2(stdout, 2)
        keep = settings["keep"] or 3
        os.closerange(3, keep)
        os.closerange(keep + bool(settings["keep"]), 256)
        for name, value in settings["limits"].items():
            number = getattr(resource, f"RLIMIT_{name}")
            hard = resource.getrlimit(number)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(number, (value, value))
        if settings["landlock"] is not None:
            restrict(settings["landlock"], settings["folder"])
        if settings["command"]:
            os.execv(settings["command"][0], settings["command"])
        sys.argv = [settings["python"], *settings["arguments"]]
        sys.path.insert(0, settings["folder"])
        status = interpret(settings["python"])
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def interpret(file: str) -> int:
    """Run a Python program as `python FILE` does; returns its exit status."""
    import atexit
    import threading

    status: Any = 0
    try:
        runpy.run_path(file, run_name="__main__")
    except SystemExit as end:
        status = end.code
        if status is not None and not isinstance(status, int):
            print(status, file=sys.stderr)
            status = 1
    except BaseException as error:
        own = error.__traceback__
        while own is not None and own.tb_frame.f_code.co_filename != file:
            own = own.tb_next
        traceback.print_exception(type(error), error, own)
        status = 1
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            status = status or 1
    return (status or 0) & 255


def restrict(readable: list[str], folder: str) -> None:
    """Allow no files but those of some folders, no TCP, and, where the kernel knows how, no signals to others.

    By `linux/landlock.h`: `landlock_ruleset_attr` and `landlock_path_beneath_attr`, which is packed.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def call(number: int, *arguments: Any) -> int:
        found = libc.syscall(number, *arguments)
        if found < 0:
            raise OSError(ctypes.get_errno(), "Landlock refused its rules")
        return int(found)

    version = call(CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    every = (1 << RIGHTS[max(known for known in RIGHTS if known <= version)]) - 1
    fields = (ctypes.c_uint64 * 3)(every, 3 if version >= 4 else 0, 3 if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = call(CREATE_RULESET, fields, ctypes.c_size_t(size), 0)
    rules = [(path, EXECUTE | READ_FILE | READ_FOLDER) for path in readable]
    rules += [(folder, every), (os.devnull, READ_FILE | WRITE_FILE)]
    for path, rights in rules:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
        given = rights if pathlib.Path(path).is_dir() else rights & (EXECUTE | WRITE_FILE | READ_FILE)
        rule = given.to_bytes(8, sys.byteorder) + opened.to_bytes(4, sys.byteorder)
        call(ADD_RULE, ruleset, 1, rule, 0)
        os.close(opened)
    libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    call(RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def refuse(settings: dict[str, Any]) -> None:
    """Refuse system calls by seccomp: tracing, namespaces, and signals to the launcher, the trainer and everything.

    By `linux/filter.h` and `linux/seccomp.h`.
    """
    load, equal, at_least, has, end = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, denied, unknown = (end, 0, 0, 0x7FFF0000), (end, 0, 0, 0x50001), (end, 0, 0, 0x50000 | ENOSYS)
    audit, never, making, signals = CALLS[os.uname().machine]
    code = [(load, 0, 0, 4), (equal, 1, 0, audit), unknown, (load, 0, 0, 0), (at_least, 0, 1, 0x40000000), unknown]
    for number in (*never, *EVERYWHERE):
        code += [(equal, 0, 1, number), unknown if number in EVERYWHERE else denied]
    for number in making:
        code += [(equal, 0, 4, number), (load, 0, 0, 16), (has, 0, 1, NAMESPACES), denied, allow]
    if not settings["alone"]:  # in a namespace of its own the launcher is the first process, which is spared
        others = [sign * pid for pid in (os.getpid(), os.getppid()) for sign in (1, -1)]
        body = [step for pid in (*others, -1) for step in ((equal, 0, 1, pid & 0xFFFFFFFF), denied)]
        for number in (*signals, 434):  # pidfd_open
            code += [(equal, 0, len(body) + 2, number), (load, 0, 0, 16), *body, allow]
    code.append(allow)
    steps = b"".join(struct.pack("HBBI", *step) for step in code)
    held = ctypes.create_string_buffer(steps)
    described = ctypes.create_string_buffer(struct.pack("HP", len(code), ctypes.addressof(held)))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    if libc.prctl(SECCOMP, 2, described, 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp refused its filter")


def send(to: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(to, view) :]


if __name__ == "__main__":
    main()
