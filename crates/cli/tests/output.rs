//! Commands whose output nobody reads.
#![allow(clippy::unwrap_used)]

mod support;

use std::fs::OpenOptions;
use std::process::{Command, Output, Stdio};

use support::Session;

fn into(session: &Session, args: &[&str], out: Stdio) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zuse"));
    command.args(args).env("ZUSE_STATE", session.state()).stdin(Stdio::null()).stdout(out).stderr(Stdio::piped());
    command.spawn().unwrap().wait_with_output().unwrap()
}

#[test]
fn what_cannot_be_printed_stops_no_change_and_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let s = Session::empty();
    let image = dir.path().join("a");
    std::fs::File::create(&image).unwrap().set_len(128 << 20).unwrap();
    s.ok(&["zpool", "create", "-m", "none", "t", image.to_str().unwrap()]);
    let full = || Stdio::from(OpenOptions::new().write(true).open("/dev/full").unwrap());
    let closed = || Stdio::from(std::io::pipe().unwrap().1);
    for (out, says) in [(full(), "cannot write: No space left on device"), (closed(), "")] {
        for name in ["t/fs", "t/fs/a", "t/fs/b"] {
            s.ok(&["zfs", "create", "-u", name]);
        }
        let ran = into(&s, &["zfs", "destroy", "-rv", "t/fs"], out);
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert!(ran.status.code() == Some(1) && said.starts_with(says) && !said.contains("panicked"), "{said}");
        assert_eq!(s.ok(&["zfs", "list", "-H", "-o", "name"]), "t\n");
    }
    for args in [["zfs", "version"], ["zpool", "status"], ["zfs", "list"]] {
        let ran = into(&s, &args, full());
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert!(ran.status.code() == Some(1) && said.lines().count() == 1, "{args:?}: {said}");
    }
}

#[test]
fn help_is_where_it_is_looked_for() {
    let session = Session::empty();
    let verbs = ["ls", "cat", "stat", "cp", "tar", "put", "mkdir", "rm", "mv", "ln", "verify", "zil", "kstat"];
    for verb in verbs {
        let help = session.ok(&["help", verb]);
        assert!(help.starts_with(&format!("usage: zuse {verb}")) && help.contains("-L KEYLOCATION"), "{verb}: {help}");
        for option in ["-h", "--help", "-?"] {
            assert_eq!(session.ok(&[verb, option]), help, "{verb} {option}");
        }
    }
    assert_eq!(session.ok(&["help"]), session.ok(&["--help"]));
    assert_eq!(session.ok(&["help", "zpool", "create"]), session.ok(&["zpool", "help", "create"]));
    assert_eq!(session.ok(&["help", "zfs"]), session.ok(&["zfs", "help"]));
    assert!(session.ok(&["help", "zdb"]).starts_with("Usage:\tzdb"));
    assert!(session.ok(&["help", "zstream"]).starts_with("usage: zstream"));
    session.fails(&["help", "nonsense"], 2, "unrecognized command 'nonsense'");
    // after `--` it is a name
    session.fails(&["ls", "--", "-h"], 1, "");
}
