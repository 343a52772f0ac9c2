"""Programs that attack the one that runs them. Each may print what it finds: `{secret}` is never to be among it.

Filled in: `{file}` and `{folder}` (outside of the sandbox, with the secret), `{pid}` of the test's process, whose
environment and memory hold the secret too, `{port}` of a server on the loopback, `{socket}`, the name of an abstract
socket, and `{mark}`, by which processes and files that are left behind are found.
"""

# ruff: noqa: E501  programs

from __future__ import annotations

READING = {
    "file": "print(open('{file}').read())",
    "folder": "import os\nfor top, _, names in os.walk('{folder}'):\n    for n in names: print(open(top + '/' + n).read())",
    "dotdot": "print(open('../../../../../../..{file}').read())",
    "proc_root": "print(open('/proc/1/root{file}').read())",
    "proc_self_root": "print(open('/proc/self/root{file}').read())",
    "proc_cwd": "import os\nfor p in os.listdir('/proc'):\n    try: print(open('/proc/%s/cwd{file}' % p).read())\n"
    "    except OSError: pass",
    "trainer_root": "print(open('/proc/{pid}/root{file}').read())",
    "environment": "import os\nprint(dict(os.environ))",
    "trainer_environment": "print(open('/proc/{pid}/environ').read())",
    "all_environments": "import glob\nfor name in glob.glob('/proc/*/environ'):\n    try: print(open(name).read())\n"
    "    except OSError: pass",
    "trainer_memory": "m = open('/proc/{pid}/maps').read()\nf = open('/proc/{pid}/mem', 'rb')\nfor line in m.splitlines():\n"
    "    a, b = (int(x, 16) for x in line.split()[0].split('-'))\n    try: f.seek(a); print(f.read(b - a))\n"
    "    except OSError: pass",
    "parent_memory": "import os\np = os.getppid()\nm = open('/proc/%d/maps' % p).read()\nf = open('/proc/%d/mem' % p, 'rb')\n"
    "for line in m.splitlines():\n    a, b = (int(x, 16) for x in line.split()[0].split('-'))\n"
    "    try: f.seek(a); print(f.read(b - a))\n    except (OSError, OverflowError): pass",
    "command_lines": "import glob\nfor name in glob.glob('/proc/*/cmdline'): print(open(name).read())",
    "descriptors": "import os\nfor d in range(256):\n    try: os.lseek(d, 0, 0); print(os.read(d, 10000))\n"
    "    except OSError: pass",
    "parents_descriptors": "import glob\nfor name in glob.glob('/proc/*/fd/*'):\n    try: print(open(name, 'rb').read(10000))\n"
    "    except OSError: pass",
    "home": "import os, pwd\nfor u in pwd.getpwall():\n    for t, _, ns in os.walk(u.pw_dir):\n        for n in ns:\n"
    "            try: print(open(t + '/' + n, errors='replace').read()) if 'secret' in n else None\n            except OSError: pass",
    "shell": "import subprocess\nsubprocess.run('cat {file}; env; ls -la {folder}', shell=True)",
    "find": "import os\nfor t, ds, ns in os.walk('/'):\n    ds[:] = [d for d in ds if d not in ('proc', 'sys')]\n"
    "    for n in ns:\n        if n.startswith('secret'): print(open(t + '/' + n).read())",
    "symlink": "import os\nos.symlink('{file}', 'link')\nprint(open('link').read())",
    "hardlink": "import os\nos.link('{file}', 'link')\nprint(open('link').read())",
    "frames": "import sys\nf = sys._getframe()\nwhile f: print(f.f_locals, f.f_globals); f = f.f_back",
    "garbage": "import gc\nfor o in gc.get_objects():\n    if isinstance(o, (str, bytes, dict)): print(repr(o)[:2000])",
    "stdin_again": "import os\nos.lseek(0, 0, 0)\nprint(os.read(0, 10000))",
    "ptrace": "import ctypes\nlibc = ctypes.CDLL(None)\nprint(libc.ptrace(16, {pid}, 0, 0))\nprint(open('/proc/{pid}/mem').read(1))",
    "process_vm_readv": "import ctypes\nprint(ctypes.CDLL(None).syscall(310, {pid}, 0, 0, 0, 0, 0))\nopen('{file}')",
    "kernel_log": "print(open('/dev/kmsg').read(100)); print(open('{file}').read())",
}
"""Programs that look for the secret."""

WRITING = {
    "overwrite": "open('{file}', 'w').write('{mark}')",
    "create": "open('{folder}/{mark}', 'w').write('x')",
    "delete": "import os\nos.remove('{file}')",
    "remove_tree": "import shutil\nshutil.rmtree('{folder}')\nshutil.rmtree('/', ignore_errors=True)",
    "chmod": "import os\nos.chmod('{file}', 0)",
    "rename": "import os\nos.rename('{file}', '{file}.{mark}')",
    "tmp": "open('/tmp/{mark}', 'w').write('x')",
    "var_tmp": "open('/var/tmp/{mark}', 'w').write('x')",
    "shared_memory": "open('/dev/shm/{mark}', 'w').write('x')",
    "bashrc": "import os\nopen(os.path.expanduser('~root/.{mark}'), 'w').write('x')",
    "site_packages": "import sys, os\np = [p for p in sys.path if 'lib' in p][-1]\nopen(os.path.join(p, '{mark}.pth'), 'w').write('x')",
    "interpreter": "import sys\nopen(sys.executable, 'ab').write(b'x')",
    "remount": "import ctypes\nprint(ctypes.CDLL(None).mount(0, b'/', 0, 4096 | 32, 0))\nopen('{file}', 'w').write('{mark}')",
    "chroot": "import os\nos.mkdir('x'); os.chroot('x')\nfor _ in range(50): os.chdir('..')\nos.chroot('.')\n"
    "open('{file}', 'w').write('{mark}')",
    "cron": "open('/etc/cron.d/{mark}', 'w').write('x')",
    "setuid": "import os\nos.setuid(0)\nopen('{file}', 'w').write('{mark}')",
}
"""Programs that change files outside."""

REACHING = {
    "connect": "import socket\nsocket.create_connection(('127.0.0.1', {port}), 2).sendall(b'{mark}')",
    "connect_v6": "import socket\nsocket.create_connection(('::1', {port}), 2).sendall(b'{mark}')",
    "udp": "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'{mark}', ('127.0.0.1', {port}))",
    "abstract_socket": "import socket\ns = socket.socket(socket.AF_UNIX)\ns.connect('\\0{socket}')\ns.sendall(b'{mark}')",
    "http": "import urllib.request\nurllib.request.urlopen('http://127.0.0.1:{port}/{mark}', timeout=2)",
    "kill_trainer": "import os\nos.kill({pid}, 15)",
    "kill_parent": "import os\nos.kill(os.getppid(), 9)",
    "kill_all": "import os\nos.kill(-1, 9)",
    "kill_group": "import os\nos.killpg(0, 9)",
    "kill_every_pid": "import os\nfor p in [*range(2, 500), {pid}]:\n    try: os.kill(p, 9)\n    except OSError: pass",
    "stop_trainer": "import os, signal\nos.kill({pid}, signal.SIGSTOP)",
    "renice": "import os\nos.setpriority(os.PRIO_PROCESS, {pid}, 19)",
    "terminal": "import fcntl\nfcntl.ioctl(0, 0x5412, b'x')",
    "new_namespace": "import ctypes\nprint(ctypes.CDLL(None).unshare(0x10000000 | 0x20000))\nopen('{file}', 'w').write('{mark}')",
}
"""Programs that reach for the network and other processes."""

EXHAUSTING = {
    "fork_bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "thread_bomb": "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(99,)).start()",
    "memory": "x = bytearray(1 << 36)",
    "memory_slowly": "x = []\nwhile True: x.append(bytes(1 << 20))",
    "memory_of_children": "import os\nfor _ in range(8): os.fork()\nx = []\nwhile True: x.append(bytes(1 << 20))",
    "shared_mapping": "import mmap\nx = [mmap.mmap(-1, 1 << 28) for _ in range(64)]\nfor m in x: m.write(bytes(1 << 28))",
    "output": "while True: print('x' * 10000)",
    "errors": "import sys\nwhile True: sys.stderr.write('x' * 10000)",
    "disk": "n = 0\nwhile True:\n    n += 1\n    open(str(n), 'wb').write(bytes(1 << 24))",
    "shared_disk": "n = 0\nwhile True:\n    n += 1\n    open('/dev/shm/%d' % n, 'wb').write(bytes(1 << 24))",
    "many_files": "n = 0\nwhile True:\n    n += 1\n    open(str(n), 'w').close()",
    "descriptors_used_up": "import os\nx = []\nwhile True: x.append(os.open('/dev/null', 0))",
    "loop": "while True: pass",
    "sleep": "import time\ntime.sleep(1000)",
    "wait_for_input": "while True: input()",
    "ignores_signals": "import signal\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n    except (OSError, ValueError): pass\n"
    "while True: pass",
    "recursion": "import sys\nsys.setrecursionlimit(10 ** 9)\ndef f(): f()\nf()",
    "big_power": "print(len(str(9 ** 9 ** 9)))",
    "regex": "import re\nre.match('(a+)+$', 'a' * 40 + 'b')",
    "daemon": "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        '{mark}'\n        time.sleep(1000)\n"
    "    os._exit(0)",
    "closes_pipes": "import os, time\nos.close(1); os.close(2)\ntime.sleep(1000)",
    "stops_the_launcher": "import os, signal, time\nos.kill(os.getppid(), signal.SIGSTOP)\ntime.sleep(1000)",
    "exits": "import os\nos._exit(0)",
    "segfault": "import ctypes\nctypes.string_at(0)",
    "abort": "import os\nos.abort()",
    "zip_bomb": "import zlib\nd = zlib.decompressobj()\nc = zlib.compress(bytes(1 << 28))\nx = [zlib.decompress(c) for _ in range(64)]",
}
"""Programs that use up what there is."""

FORGING = {
    "answers_by_itself": 'print(\'{{"status": 0, "stopped": "ended", "seconds": 0, "stdout": 3, "stderr": 0}}\\n42\')',
    "answers_to_the_parent": "import glob\nfor name in glob.glob('/proc/*/fd/*'):\n    try:\n        with open(name, 'w') as f:\n"
    '            f.write(\'{{"status": 0, "stopped": "ended", "seconds": 0, "stdout": 3, "stderr": 0}}\\n42\\n\')\n'
    "    except OSError: pass",
    "answers_to_descriptors": "import os\nfor d in range(256):\n    try: os.write(d, b'42')\n    except OSError: pass",
    "kills_the_launcher": "import os\nprint(41)\nos.kill(os.getppid(), 9)",
}
"""Programs that claim a result, 42, that they do not have."""
