//! Commands that read a file system while others free its blocks and use the space again.
#![allow(clippy::unwrap_used)]

mod support;

use std::io::Read;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use support::Session;

const MIB: usize = 1 << 20;

/// A pool `t` on a file of that many MiB in `dir`, with a file `f` in a file system with and in one without checksums.
fn pool(dir: &Path, mib: u64, of: usize) -> Session {
    let (session, image) = (Session::empty(), dir.join("device"));
    std::fs::File::create(&image).unwrap().set_len(mib << 20).unwrap();
    session.ok(&["zpool", "create", "-m", "none", "t", image.to_str().unwrap()]);
    for sum in ["on", "off"] {
        let option = format!("checksum={sum}");
        session.ok(&["zfs", "create", "-o", "compression=off", "-o", &option, &format!("t/{sum}")]);
        assert_eq!(session.feed(&["put", &format!("t/{sum}:/f")], &vec![b'A'; of]).code, 0);
    }
    session
}

/// A command that reads a file, and blocks until its output is read.
struct Reader {
    child: Child,
    out: ChildStdout,
}

impl Reader {
    fn of(session: &Session, file: &str) -> Reader {
        let mut child = Command::new(env!("CARGO_BIN_EXE_zuse"))
            .args(["cat", file])
            .env("ZUSE_STATE", session.state())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = child.stdout.take().unwrap();
        out.read_exact(&mut [0; 512]).unwrap();
        Reader { child, out }
    }

    /// The exit status, the output after the first bytes, and the messages.
    fn end(mut self) -> (i32, Vec<u8>, String) {
        let mut rest = Vec::new();
        self.out.read_to_end(&mut rest).unwrap();
        drop(self.out);
        let done = self.child.wait_with_output().unwrap();
        (done.status.code().unwrap_or(-1), rest, String::from_utf8(done.stderr).unwrap())
    }
}

/// Checks that no device errors are reported.
fn nothing_counted(session: &Session) {
    let status = session.ok(&["zpool", "status", "-p", "t"]);
    let rows = status.lines().filter(|line| line.contains("ONLINE") && !line.contains("state:"));
    for row in rows {
        let words: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(words.get(2..5), Some(&["0", "0", "0"][..]), "{status}");
    }
}

#[test]
fn a_reader_gets_the_file_as_it_was_though_it_was_removed() {
    let dir = tempfile::tempdir().unwrap();
    let s = pool(dir.path(), 512, 24 * MIB);
    let readers = ["on", "off"].map(|sum| Reader::of(&s, &format!("t/{sum}:/f")));
    for sum in ["on", "off"] {
        s.ok(&["rm", &format!("t/{sum}:/f")]);
    }
    for n in 0..5 {
        assert_eq!(s.feed(&["put", &format!("t/on:/other{n}")], &vec![b'B'; 24 * MIB]).code, 0);
    }
    for reader in readers {
        let (code, rest, told) = reader.end();
        assert_eq!((code, rest.len(), &*told), (0, 24 * MIB - 512, ""));
        assert!(rest.iter().all(|byte| *byte == b'A'));
    }
    nothing_counted(&s);
    assert!(std::fs::read_dir(s.state().join("readers")).unwrap().next().is_none());
}

#[test]
fn a_reader_whose_space_is_needed_is_told_and_no_device_is_blamed() {
    let dir = tempfile::tempdir().unwrap();
    let s = pool(dir.path(), 200, 30 * MIB);
    let readers = ["on", "off"].map(|sum| Reader::of(&s, &format!("t/{sum}:/f")));
    for sum in ["on", "off"] {
        s.ok(&["rm", &format!("t/{sum}:/f")]);
    }
    let mut written = 0;
    for n in 0..40 {
        if s.feed(&["put", &format!("t/on:/other{n}")], &vec![b'B'; 8 * MIB]).code != 0 {
            break;
        }
        written += 8;
    }
    assert!(written > 60, "what readers held was not given up: {written} MiB were written");
    let mut failed = 0;
    for reader in readers {
        let (code, rest, told) = reader.end();
        assert!(rest.iter().all(|byte| *byte == b'A'), "bytes of another file");
        assert!(code == 0 || told.contains("its space was reused"), "{told}");
        failed += i32::from(code != 0);
    }
    assert!(failed > 0, "nobody was told");
    nothing_counted(&s);
}

/// Blocks that were never freed but are reused all the same: those of a state that is given up, and of another pool's
/// devices.
#[test]
fn a_reader_of_what_is_given_up_is_told() {
    for again in ["rewind", "create"] {
        let dir = tempfile::tempdir().unwrap();
        let s = pool(dir.path(), 200, MIB);
        let image = dir.path().join("device").display().to_string();
        s.ok(&["zpool", "checkpoint", "t"]);
        for sum in ["on", "off"] {
            assert_eq!(s.feed(&["put", &format!("t/{sum}:/new")], &vec![b'A'; 20 * MIB]).code, 0);
        }
        let readers = ["on", "off"].map(|sum| Reader::of(&s, &format!("t/{sum}:/new")));
        s.ok(&["zpool", "export", "t"]);
        if again == "rewind" {
            s.ok(&["zpool", "import", "--rewind-to-checkpoint", "-d", &image, "t"]);
        } else {
            s.ok(&["zpool", "create", "-f", "-m", "none", "t", &image]);
            s.ok(&["zfs", "create", "-o", "compression=off", "t/on"]);
        }
        for n in 0..4 {
            assert_eq!(s.feed(&["put", &format!("t/on:/other{n}")], &vec![b'B'; 16 * MIB]).code, 0);
        }
        for reader in readers {
            let (code, rest, told) = reader.end();
            assert!(rest.iter().all(|byte| *byte == b'A'), "{again}: bytes of another file");
            assert!(code == 1 && told.contains("its space was reused"), "{again}: {code} {told}");
        }
        nothing_counted(&s);
    }
}

/// Until there is a new state, the one that is given up can be found, and is overwritten.
#[test]
fn a_reader_that_begins_while_a_state_is_given_up_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let s = pool(dir.path(), 128, MIB);
    let guid = s.ok(&["zpool", "get", "-H", "-o", "value", "guid", "t"]);
    let image = dir.path().join("device");
    let mut bytes = std::fs::read(&image).unwrap();
    let data = bytes.chunks_mut(1 << 17).filter(|chunk| chunk.iter().all(|byte| *byte == b'A'));
    data.for_each(|chunk| chunk.fill(b'B'));
    std::fs::write(&image, bytes).unwrap();
    let folder = s.state().join("given-up");
    std::fs::create_dir_all(&folder).unwrap();
    let given_up = folder.join(format!("{}.0", guid.trim()));
    let file = std::fs::File::create(&given_up).unwrap();
    file.lock().unwrap();
    for sum in ["on", "off"] {
        let ran = s.run(&["cat", &format!("t/{sum}:/f")]);
        assert!(ran.code == 1 && ran.err.contains("its space was reused"), "{sum}: {}", ran.err);
    }
    // the command that gave it up was killed
    drop(file);
    let ran = s.run(&["cat", "t/on:/f"]);
    assert!(ran.code == 1 && ran.err.contains("checksum"), "{}", ran.err);
    assert!(!given_up.exists());
}

#[test]
fn a_reader_that_was_killed_holds_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let s = pool(dir.path(), 200, 20 * MIB);
    let mut reader = Reader::of(&s, "t/on:/f");
    let files = || std::fs::read_dir(s.state().join("readers")).unwrap().count();
    assert_eq!(files(), 1);
    reader.child.kill().unwrap();
    reader.child.wait().unwrap();
    assert_eq!(files(), 1);
    s.ok(&["rm", "t/on:/f"]);
    assert_eq!(files(), 0, "who writes removes what dead readers left");
}
