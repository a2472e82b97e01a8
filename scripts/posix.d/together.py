"""Three clients of one server at a time: `together.py SECONDS STREAM MOUNT IN SNAPPED`. One receives the stream into the dataset IN, again and again; one
writes to files below MOUNT, with fsync; one takes snapshots of the dataset SNAPPED, destroys them, and waits for a txg (zpool sync). Tells how often each
did so, and how long the longest took: a snapshot is to take no longer than a txg."""

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


def run(*words, **how):
    subprocess.run(words, check=True, **how)


def receive():
    with open(stream, "rb") as file:
        timed("receive", lambda: run("zfs", "receive", "-F", received, stdin=file))
    timed("destroy -r", lambda: run("zfs", "destroy", "-r", received))


def snapshot():
    timed("snapshot", lambda: run("zfs", "snapshot", f"{snapped}@s"))
    timed("destroy of a snapshot", lambda: run("zfs", "destroy", f"{snapped}@s"))
    timed("zpool sync", lambda: run("zpool", "sync", snapped.split("/")[0]))


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
