"""Three clients of one server at a time: `together.py SECONDS STREAM MOUNT IN SNAPPED`. One receives the stream into the dataset IN, again and again; one
writes to files below MOUNT, with fsync; one takes snapshots of the dataset SNAPPED, and destroys them. Tells how often each did so, and how long the
longest took."""

import os
import subprocess
import sys
import threading
import time

seconds, stream, mount, received, snapped = float(sys.argv[1]), *sys.argv[2:]
end = time.monotonic() + seconds
times = {}
failures = []


def timed(what, call):
    begun = time.monotonic()
    call()
    times.setdefault(what, []).append(time.monotonic() - begun)


def zfs(*words, **how):
    subprocess.run(["zfs", *words], check=True, **how)


def receive():
    with open(stream, "rb") as file:
        timed("receive", lambda: zfs("receive", "-F", received, stdin=file))
    timed("destroy -r", lambda: zfs("destroy", "-r", received))


def snapshot():
    timed("snapshot", lambda: zfs("snapshot", f"{snapped}@s"))
    timed("destroy of a snapshot", lambda: zfs("destroy", f"{snapped}@s"))


block = os.urandom(1 << 20)
numbers = iter(range(1 << 30))


def write():
    path = os.path.join(mount, f"f{next(numbers) % 8}")
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for _ in range(16):
        timed("write of 1 MiB", lambda: os.write(file, block))
    timed("fsync", lambda: os.fsync(file))
    os.close(file)


def loop(work):
    try:
        while time.monotonic() < end and not failures:
            work()
    except BaseException as failure:
        failures.append(failure)
        raise


threads = [threading.Thread(target=loop, args=[work]) for work in (receive, write, snapshot)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for what, took in sorted(times.items()):
    took.sort()
    print(f"{what}: {len(took)}, median {took[len(took) // 2] * 1000:.0f} ms, longest {took[-1] * 1000:.0f} ms")
sys.exit(1 if failures else 0)
