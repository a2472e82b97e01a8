"""Commits transactions to a database of SQLite in WAL mode, and notes each in a file when it is acknowledged: `sqlite.py DATABASE NOTES`, until it is
killed or the file system goes. `sqlite.py --check DATABASE NOTES`: the database is whole, and has all that was noted."""

import os
import sqlite3
import sys


def opened(path):
    db = sqlite3.connect(path, timeout=60, isolation_level=None)
    db.execute("pragma journal_mode=wal")
    db.execute("pragma synchronous=full")
    db.execute("pragma mmap_size=67108864")
    db.execute("pragma wal_autocheckpoint=50")
    return db


def write(path, notes):
    db = opened(path)
    db.execute("create table if not exists t (n integer primary key, half integer, text text)")
    db.execute("create index if not exists i on t (text)")
    (last,) = db.execute("select coalesce(max(n), 0) from t").fetchone()
    with open(notes, "a") as noted:
        for n in range(last + 1, 1 << 30):
            db.execute("begin immediate")
            db.execute("insert into t values (?, ?, ?)", (n, n // 2, f"{n:x}" * (1 + n % 300)))
            db.execute("update t set text = text || '.' where n = ?", (n // 2,))
            db.execute("delete from t where n = ? and n % 3 = 0", (n - 100,))
            db.execute("commit")
            noted.write(f"{n}\n")
            noted.flush()


def check(path, notes):
    db = opened(path)
    whole = db.execute("pragma integrity_check").fetchall()
    assert whole == [("ok",)], whole
    with open(notes) as noted:
        last = max(map(int, noted), default=0)
    there = {n for (n,) in db.execute("select n from t")}
    (top,) = db.execute("select max(n) from t").fetchone()
    assert top >= last, f"{last} was committed, and {top} is the last one"
    expected = {n for n in range(1, top + 1) if n > top - 100 or n % 3 != 0}
    assert there == expected, sorted(there ^ expected)[:10]


if sys.argv[1] == "--check":
    check(*sys.argv[2:])
else:
    try:
        write(*sys.argv[1:])
    except (sqlite3.Error, OSError) as gone:
        # without the interpreter's end, which would wait for the file system
        print(f"the writer ends: {gone}", file=sys.stderr)
        os._exit(1)
