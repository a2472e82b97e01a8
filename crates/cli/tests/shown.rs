//! Names and values that would act on a terminal are escaped, in tables, lists, messages and JSON.
#![allow(clippy::unwrap_used)]

mod support;

use support::Session;

/// Characters that end a command, begin one, change the direction of text, and begin a line, and a byte that is not
/// text.
const EVIL: &str = "x\u{1b}[2J\u{9b}31m\u{61c}\u{202e}y\nz";
const SHOWN: &str = "x\\x1b[2J\\xc2\\x9b31m\\xd8\\x9c\\xe2\\x80\\xaey\\nz";

/// Returns whether text does not act on a terminal.
fn is_calm(text: &str) -> bool {
    let acts = |c: char| (c.is_control() && c != '\n' && c != '\t') || matches!(c, '\u{61c}' | '\u{202e}');
    !text.chars().any(acts)
}

#[test]
fn what_a_terminal_would_obey_is_escaped() {
    let (session, dir) = (Session::empty(), tempfile::tempdir().unwrap());
    let device = dir.path().join("a").to_str().unwrap().to_owned();
    session.ok(&["zpool", "create", "-m", "none", "--size", "64M", "tank", &device]);
    let target = format!("tank:/{EVIL}");
    let put = session.feed(&["put", &target], b"1");
    assert_eq!((put.code, put.err.as_str()), (0, ""));
    assert_eq!(session.ok(&["ls", "tank:/"]), format!("{SHOWN}\n"));
    let long = session.ok(&["ls", "-lR", "tank:/"]);
    assert!(long.ends_with(&format!(" {SHOWN}\n")) && long.lines().count() == 2, "{long}");
    let stat = session.ok(&["stat", &target]);
    assert!(is_calm(&stat) && stat.lines().next().unwrap().ends_with("y\\nz"), "{stat}");
    let lines = session.ok(&["ls", "--json", "tank:/"]);
    assert!(is_calm(&lines) && lines.contains("\\u202e") && lines.contains("\\u009b"), "{lines}");
    let json: serde_json::Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    assert_eq!(json["path"], EVIL);
    // messages
    for words in [["cat", &format!("{target}-"), ""], ["rm", &format!("{target}-"), ""], ["zfs", "list", EVIL]] {
        let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
        let run = session.run(&words);
        assert!(run.code == 1 && is_calm(&run.err), "{words:?}: {}", run.err.escape_debug());
    }
    // values of properties: in a table they are on one line; a program gets them exactly
    session.ok(&["zfs", "set", &format!("a:b={EVIL}"), "tank"]);
    let table = session.ok(&["zfs", "get", "a:b", "tank"]);
    assert!(table.lines().count() == 2 && table.contains(SHOWN), "{table}");
    let list = session.ok(&["zfs", "list", "-o", "name,a:b"]);
    assert!(list.lines().count() == 2 && list.contains(SHOWN), "{list}");
    assert_eq!(session.ok(&["zfs", "get", "-H", "-o", "value", "a:b", "tank"]), format!("{EVIL}\n"));
    let json = session.ok(&["zfs", "get", "-j", "a:b", "tank"]);
    assert!(is_calm(&json), "{json}");
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["datasets"]["tank"]["properties"]["a:b"]["value"], EVIL);
    for words in [&["zpool", "history", "tank"][..], &["zpool", "history", "-il", "tank"]] {
        let told = session.ok(words);
        assert!(is_calm(&told) && told.contains("\\x1b"), "{words:?}: {}", told.escape_debug());
    }
    // each command is one line of the history
    let commands = session.ok(&["zpool", "history", "tank"]);
    assert_eq!(commands.lines().filter(|line| line.contains(" zfs set ")).count(), 1);
    assert!(commands.lines().skip(1).all(|line| line.is_empty() || line.starts_with("20")), "{commands}");
    session.ok(&["zpool", "export", "tank"]);
}

#[test]
fn what_the_system_says_has_no_numbers_behind_it() {
    let (session, dir) = (Session::empty(), tempfile::tempdir().unwrap());
    let nowhere = dir.path().join("nowhere");
    let path = nowhere.to_str().unwrap();
    for words in [
        &["ls", "-d", path, "tank:/"][..],
        &["zpool", "create", "tank", path],
        &["zpool", "labelclear", path],
        &["zdb", "-l", path],
        &["zstream", "dump", path],
        &["tar", "-x", "-f", path, "tank:/"],
    ] {
        let run = session.run(words);
        assert!(run.code != 0 && !run.err.contains("os error"), "{words:?}: {}", run.err);
    }
    // nor if a record of the state folder cannot be read
    std::fs::write(session.state().join("1.json"), "{}").unwrap();
    std::fs::create_dir(session.state().join("2.json")).unwrap();
    let run = session.run(&["zpool", "list"]);
    assert!(run.code == 1 && run.err.contains("Is a directory") && !run.err.contains("os error"), "{}", run.err);
}

/// Anybody may have chosen the paths and the name in the labels of a device.
#[test]
fn labels_do_not_forge_lines() {
    const FORGED: &str = "errors: No known data errors";
    let (session, dir) = (Session::empty(), tempfile::tempdir().unwrap());
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let devices = [path("a"), path(&format!("b\n\n{FORGED}")), path(&format!("log\n{FORGED}"))];
    let [a, b, log] = devices.each_ref().map(String::as_str);
    session.ok(&["zpool", "create", "-m", "none", "--size", "128M", "tank", "mirror", a, b, "log", log]);
    let forged = |out: &str| out.lines().filter(|line| line.trim_start().starts_with(FORGED)).count();
    let all = |wanted: usize| {
        for words in [
            &["zpool", "status", "tank"][..],
            &["zpool", "list", "-v", "tank"],
            &["zpool", "list", "-Hv", "tank"],
            &["zpool", "iostat", "-v", "tank"],
            &["zpool", "iostat", "-Hv", "tank"],
            &["zpool", "events", "-v"],
            &["zpool", "history", "-il", "tank"],
        ] {
            let out = session.ok(words);
            let own = if words[1] == "status" { wanted } else { 0 };
            assert_eq!(forged(&out), own, "{words:?}: {out}");
        }
    };
    all(1);
    std::fs::remove_file(b).unwrap();
    assert!(session.ok(&["zpool", "status", "tank"]).contains("was "));
    all(1);
    session.ok(&["zpool", "export", "tank"]);
    let folder = dir.path().to_str().unwrap();
    let shown = session.ok(&["zpool", "import", "-d", folder]);
    assert!(shown.contains("pool: tank\n") && forged(&shown) == 0, "{shown}");

    // and a name that only who writes labels can give
    for device in [a, log] {
        let device = vdev::FileDevice::open_read_write(std::path::Path::new(device)).unwrap();
        let mut config = vdev::label::read_label(&device, 0).unwrap().config;
        config.insert("name", format!("tank\n\n{FORGED}").as_str());
        vdev::label::write_config(&device, &config, &[0, 1, 2, 3]).unwrap();
    }
    let run = session.run(&["zpool", "import", "-d", folder]);
    assert!(run.code == 0 && run.out.is_empty(), "{run:?}");
    assert!(run.err.contains("its name has control characters\nno pools available to import\n"), "{run:?}");
}
