//! `zpool iostat`, errors in `zpool status`, scripts on devices (`-c`), and `zpool wait`: the work of other commands.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

#[path = "support/devices.rs"]
mod devices;
mod support;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use devices::Lab;
use support::cells;

/// A pool with a mirror and a log, and some bytes in it.
fn busy_pool() -> Lab {
    let lab = Lab::new();
    lab.ok("zpool create -m none --size 64M tank mirror /a /b log /c");
    lab.ok("zfs create tank/files");
    let put = lab.session.feed(&["put", "tank/files:/data"], &vec![7; 4 << 20]);
    assert_eq!((put.code, put.err.as_str()), (0, ""));
    lab
}

/// The numbers of a line of `-Hp`.
fn numbers(row: &[&str]) -> Vec<u64> {
    row.iter().skip(1).map(|cell| cell.parse().unwrap()).collect()
}

#[test]
fn what_all_commands_did_since_the_import_is_told() {
    let lab = busy_pool();
    let text = lab.ok("zpool iostat -Hpv tank");
    let rows = cells(&text);
    let names: Vec<&str> = rows.iter().map(|row| row[0].rsplit('/').next().unwrap()).collect();
    assert_eq!(names, ["tank", "mirror-0", "a", "b", "c"]);
    let figures: Vec<Vec<u64>> = rows.iter().map(|row| numbers(row)).collect();
    let (pool, mirror, a, b, log) = (&figures[0], &figures[1], &figures[2], &figures[3], &figures[4]);
    assert!(pool[0] > 0 && pool[0] == mirror[0] && pool[1] == mirror[1], "{text}");
    assert_eq!((a[0], a[1]), (0, 0), "{text}");
    // each leaf is counted; rounding may take one each
    for column in 2..6 {
        let sum = a[column] + b[column] + log[column];
        assert!(pool[column] >= sum && pool[column] <= sum + 3, "{text}");
    }
    assert!(a[3] > 0 && a[5] > 0, "{text}");

    // looking does nothing, and counting begins with the import
    let histogram = |lab: &Lab| -> u64 {
        let text = lab.ok("zpool iostat -Hpw tank");
        let rows = cells(&text);
        rows.iter().filter(|row| row.len() == 12).map(|row| numbers(row)[2..4].iter().sum::<u64>()).sum()
    };
    let before = histogram(&lab);
    assert!(before > 10, "{before}");
    assert_eq!(histogram(&lab), before);
    lab.ok("zfs snapshot tank/files@s");
    let after = histogram(&lab);
    assert!(after > before, "{after}");
    lab.ok("zpool export tank");
    lab.session.ok(&["zpool", "import", "-d", lab.dir(), "tank"]);
    assert!(histogram(&lab) < after);
}

#[test]
fn sizes_and_times_are_told_by_class() {
    let lab = busy_pool();
    lab.ok("zpool scrub tank");
    let sums = |flag: &str, width: usize| -> Vec<u64> {
        let text = lab.ok(&format!("zpool iostat -Hp{flag} tank"));
        let rows = cells(&text);
        let rows: Vec<Vec<u64>> = rows.iter().filter(|row| row.len() == width).map(|row| numbers(row)).collect();
        (0..width - 1).map(|column| rows.iter().map(|row| row[column]).sum()).collect()
    };
    // sync and async, individual and aggregated; scrub
    let sizes = sums("r", 15);
    for (what, n) in [("sync reads", sizes[0]), ("sync writes", sizes[2]), ("scrub", sizes[8] + sizes[9])] {
        assert!(n > 0, "{what}: {sizes:?}");
    }
    assert!(sizes[6] > 0 && sizes[7] > 0 && sizes[10..] == [0; 4], "{sizes:?}");
    let times = sums("w", 12);
    assert_eq!(times[0], times[2], "each read has a whole and a part: {times:?}");
    assert_eq!(times[1], times[3], "{times:?}");
    // each operation waited, if only for a moment, in the queue of its class
    assert_eq!(times[0] + times[1], times[4..].iter().sum::<u64>(), "{times:?}");
    assert_eq!(sizes.iter().sum::<u64>(), times[0] + times[1], "{sizes:?} {times:?}");
    let text = lab.ok("zpool iostat -Hpr tank");
    let rows = cells(&text);
    let bounds: Vec<u64> = rows.iter().filter(|row| row.len() == 15).map(|row| row[0].parse().unwrap()).collect();
    assert_eq!(bounds, (9..25).map(|n| 1 << n).collect::<Vec<u64>>());
    let text = lab.ok("zpool iostat -r tank");
    assert!(text.contains("\nreq_size "), "{text}");
    assert_eq!(lab.ok("zpool iostat -lq tank").lines().nth(1).unwrap().split_whitespace().count(), 32);
}

#[test]
fn what_waits_in_queues_is_told_while_it_waits() {
    let lab = Lab::new();
    lab.ok("zpool create -m none --size 64M tank /a");
    lab.ok("zfs create -o compression=off tank/files");
    assert_eq!(lab.session.feed(&["put", "tank/files:/data"], &vec![7; 4 << 20]).code, 0);
    let queues = || numbers(&cells(&lab.ok("zpool iostat -Hpq tank"))[0])[6..].to_vec();
    assert_eq!(queues(), [0; 14]);
    // one request at a time: the others wait, and each is overdue at once
    let words = ["-o", "zfs_vdev_max_active=1", "-o", "vdev_latency_ms=60", "-o", "zfs_deadman_ziotime_ms=20"];
    let mut scrub = Command::new(env!("CARGO_BIN_EXE_zuse"))
        .args(words)
        .args(["-o", "zfs_deadman_checktime_ms=1000", "zpool", "scrub", "tank"])
        .env("ZUSE_STATE", lab.session.state())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let begun = std::time::Instant::now();
    let seen = loop {
        let seen = queues();
        if seen.iter().any(|n| *n > 0) {
            break seen;
        }
        assert!(begun.elapsed() < Duration::from_secs(120) && scrub.try_wait().unwrap().is_none(), "nothing is seen");
        std::thread::sleep(Duration::from_millis(50));
    };
    // one is active at most
    assert!(seen.iter().skip(1).step_by(2).sum::<u64>() <= 1, "{seen:?}");
    let out = scrub.wait_with_output().unwrap();
    assert!(out.status.success());
    assert_eq!(queues(), [0; 14]);
    let told = String::from_utf8(out.stderr).unwrap();
    let line = told.lines().find(|line| line.contains(" is not done after ")).unwrap_or_else(|| panic!("{told}"));
    assert!(line.starts_with(&format!("zuse: {}: ", lab.path("a"))) && line.contains(" bytes at offset "), "{line}");
    assert!(told.lines().count() < 200, "{told}");
    let events = lab.ok("zpool events -v tank");
    let event = events.split("\n\n").find(|event| event.contains("ereport.fs.zfs.deadman")).unwrap_or_default();
    let path = format!("vdev_path = \"{}\"", lab.path("a"));
    for part in
        [path.as_str(), "zio_offset = 0x", "zio_size = 0x", "zio_priority = 0x", "zio_delta = 0x", "zio_type = 0x"]
    {
        assert!(event.contains(part), "{part}: {events}");
    }
    assert!(!events.contains("ereport.fs.zfs.delay"), "none took half a minute: {events}");
    // the administrator may want the process to end then
    let scrub = Command::new(env!("CARGO_BIN_EXE_zuse"))
        .args(words)
        .args(["-o", "zfs_deadman_checktime_ms=1000", "-o", "zfs_deadman_failmode=panic", "zpool", "scrub", "tank"])
        .env("ZUSE_STATE", lab.session.state())
        .output()
        .unwrap();
    let told = String::from_utf8(scrub.stderr).unwrap();
    lab.ok("-o zio_slow_io_ms=20 -o vdev_latency_ms=60 zpool scrub tank");
    assert!(lab.ok("zpool events tank").contains("ereport.fs.zfs.delay"));
    assert!(
        !scrub.status.success() && told.contains("panic: deadman determined I/O to pool 'tank' is hung."),
        "{told}"
    );
}

#[test]
fn later_lines_tell_of_what_happened_since() {
    let lab = busy_pool();
    let mut child = Command::new(env!("CARGO_BIN_EXE_zuse"))
        .args(["zpool", "iostat", "-Hpy", "tank", "1"])
        .env("ZUSE_STATE", lab.session.state())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut rows = lines.map(|line| numbers(&cells(&line.unwrap())[0])[2..].to_vec());
    assert_eq!(rows.next(), Some(vec![0; 4]));
    let put = lab.session.feed(&["put", "tank/files:/more"], &vec![9; 8 << 20]);
    assert_eq!(put.code, 0, "{put:?}");
    assert!(rows.take(60).any(|figures| figures[1] > 0 && figures[3] > 0));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(
        lab.ok("zpool iostat -Hpy tank 0.1 2").lines().next().map(|line| numbers(&cells(line)[0])[2..].to_vec()),
        Some(vec![0; 4])
    );
}

#[test]
fn the_table_is_that_of_openzfs() {
    let lab = Lab::new();
    lab.ok("zpool create -m none --size 64M tank mirror /a /b log /c cache /d special mirror /e /f");
    let text = lab.ok("zpool iostat -v tank");
    let lines: Vec<&str> = text.lines().collect();
    let width = lab.path("a").len() + 4;
    assert_eq!(lines[0], format!("{:width$}    capacity     operations     bandwidth ", ""));
    assert_eq!(lines[1], format!("{:<width$}  alloc   free   read  write   read  write", "pool"));
    assert_eq!(lines[2], format!("{}{}", "-".repeat(width), "  -----".repeat(6)));
    let names: Vec<String> = lines[3..].iter().map(|line| line.get(..width).unwrap().trim_end().to_owned()).collect();
    let leaf = |name: &str, depth: usize| format!("{:depth$}{}", "", lab.path(name));
    let wanted = [
        "tank".to_owned(),
        "  mirror-0".to_owned(),
        leaf("a", 4),
        leaf("b", 4),
        "special".to_owned(),
        "  mirror-2".to_owned(),
        leaf("e", 4),
        leaf("f", 4),
        "logs".to_owned(),
        leaf("c", 2),
        "cache".to_owned(),
        leaf("d", 2),
        "-".repeat(width),
    ];
    assert_eq!(names, wanted);
    let (section, mirror) = (lines[7], lines[4]);
    assert_eq!(section.split_whitespace().collect::<Vec<_>>(), ["special", "-", "-", "-", "-", "-", "-"]);
    assert!(!mirror.contains(" -"), "{mirror}");

    // chosen vdevs are at the left
    let chosen = lab.ok("zpool iostat tank mirror-0 /c");
    let names: Vec<&str> = chosen.lines().skip(3).map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(names, ["mirror-0", &lab.path("c"), &"-".repeat(width)]);
    assert!(chosen.contains("\nvdev"), "{chosen}");
    let guid = lab.ok("zpool get -Hpo value guid tank mirror-0");
    assert!(lab.ok(&format!("zpool iostat -gH {}", guid.trim())).starts_with(guid.trim()));
    assert_eq!(lab.ok("zpool iostat -l tank").lines().nth(1).unwrap().split_whitespace().count(), 18);
    // headings once, a time above each line
    assert_eq!(lab.ok("zpool iostat -Td tank 0.01 2").lines().count(), 7);
}

#[test]
fn scripts_run_on_each_device() {
    let lab = Lab::new();
    lab.ok("zpool create -m none --size 64M tank mirror /a /b log /c");
    let scripts = lab.dir.path().join("scripts");
    std::fs::create_dir(&scripts).unwrap();
    let script = |name: &str, text: &str| {
        let path = scripts.join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    script(
        "size",
        "if [ \"$1\" = -h ]; then echo \"Show the size.\"; exit; fi\necho name=${VDEV_PATH##*/}; echo pool=$POOL_NAME; echo name=twice",
    );
    script("odd", "case $VDEV_UPATH in */b) echo extra; echo unread=1;; *) exit 3;; esac");
    script("environment", "echo variables=$(env | grep -c -v '^\\(_\\|PWD\\|SHLVL\\|OLDPWD\\)=')");
    let run = |words: &[&str], set: &[(&str, &str)]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_zuse"));
        command.args(words).env("ZUSE_STATE", lab.session.state()).env("ZPOOL_SCRIPTS_PATH", &scripts);
        command.env("ZPOOL_SCRIPTS_AS_ROOT", "yes").env_remove("ZPOOL_SCRIPTS_ENABLED");
        command.envs(set.iter().copied());
        let out = command.output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (out.status.code().unwrap(), text(&out.stdout), text(&out.stderr))
    };
    let (code, text, err) = run(&["zpool", "status", "-c", "size,../x,odd,nothing,environment", "tank"], &[]);
    assert_eq!((code, err.as_str()), (0, ""));
    let line = |text: &str, name: &str| text.lines().find(|l| l.trim_start().starts_with(name)).unwrap().to_owned();
    assert!(line(&text, "NAME").ends_with(" CKSUM  name  pool  variables"), "{text}");
    assert!(line(&text, "mirror-0").ends_with("     0"), "{text}");
    assert!(line(&text, &lab.path("a")).ends_with("     0     a  tank          5"), "{text}");
    assert!(line(&text, &lab.path("b")).ends_with("     0     b  tank          5  extra"), "{text}");

    let (_, text, _) = run(&["zpool", "iostat", "-c", "size", "tank"], &[]);
    assert!(line(&text, "pool").ends_with("  write  name  pool"), "{text}");
    assert!(
        line(&text, &lab.path("c")).ends_with("  c  tank") || line(&text, &lab.path("c")).ends_with("   c  tank"),
        "{text}"
    );
    let (_, text, _) = run(&["zpool", "iostat", "-c", "size", "tank", &lab.path("a")], &[]);
    assert_eq!(text.lines().count(), 5, "{text}");
    let (_, json, _) = run(&["zpool", "status", "-j", "-c", "odd,size", "tank"], &[]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let leaf = &json["pools"]["tank"]["vdevs"]["tank"]["vdevs"]["mirror-0"]["vdevs"][&lab.path("b")];
    assert_eq!((&leaf["name"], &leaf["extra_1"]), (&"b".into(), &"extra".into()), "{json:#}");

    let (code, text, _) = run(&["zpool", "status", "-c"], &[]);
    assert_eq!(code, 0);
    assert!(
        text.starts_with("Available 'zpool status -c' commands:\n")
            && text.contains("  size            Show the size.\n"),
        "{text}"
    );
    let (code, _, err) = run(&["zpool", "iostat", "-c", "size", "-c", "odd"], &[]);
    assert_eq!((code, err.as_str()), (1, "Can't set -c flag twice\n"));
    let (code, _, err) = run(&["zpool", "status", "-c", "size"], &[("ZPOOL_SCRIPTS_ENABLED", "0")]);
    assert_eq!((code, err.as_str()), (1, "Can't run -c, disabled by ZPOOL_SCRIPTS_ENABLED.\n"));
    if std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0) {
        let (code, _, err) = run(&["zpool", "status", "-c", "size"], &[("ZPOOL_SCRIPTS_AS_ROOT", "no")]);
        let says = "Can't run -c with root privileges unless ZPOOL_SCRIPTS_AS_ROOT is set.\n";
        assert_eq!((code, err.as_str()), (1, says));
    }
}

#[test]
fn repeated_commands_see_what_changed() {
    let lab = Lab::new();
    lab.ok("zpool create -m none --size 64M tank /a");
    let mut child = Command::new(env!("CARGO_BIN_EXE_zuse"))
        .args(["zpool", "list", "-Hpo", "allocated", "tank", "1"])
        .env("ZUSE_STATE", lab.session.state())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut sizes = lines.map(|line| line.unwrap().parse::<u64>().unwrap());
    let before = sizes.next().unwrap();
    lab.ok("zfs create tank/x");
    assert_eq!(lab.session.feed(&["put", "tank/x:/data"], &vec![7; 1 << 20]).code, 0);
    assert!(sizes.take(60).any(|now| now > before), "{before}");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn status_tells_of_slow_operations_and_of_work_on_devices() {
    let lab = Lab::new();
    lab.ok("zpool create -m none --size 64M tank mirror /a /b");
    let told = lab.ok("zpool status -sit tank");
    let end = |name: &str| {
        let line = told.lines().find(|line| line.trim_start().starts_with(name)).unwrap();
        line.split_once("ONLINE").map_or(line, |(_, end)| end).to_owned()
    };
    assert!(end("NAME").ends_with(" CKSUM  SLOW"), "{told}");
    assert_eq!(end("mirror-0"), "       0     0     0     -");
    assert_eq!(end(&lab.path("a")), "       0     0     0     0  (uninitialized)  (untrimmed)");
    let json = lab.session.json(&["zpool", "status", "-j", "-it", "tank"]);
    let leaf = &json["pools"]["tank"]["vdevs"]["tank"]["vdevs"]["mirror-0"]["vdevs"][&lab.path("a")];
    assert_eq!((&leaf["init_state"], &leaf["trim_state"]), (&"UNINITIALIZED".into(), &"UNTRIMMED".into()));

    // a blank line separates two times
    let once = lab.ok("zpool status tank");
    assert_eq!(lab.ok("zpool status tank 0.01 2"), format!("{once}\n{once}"));
    assert_eq!(lab.ok("zpool status -x 0.01 2"), "all pools are healthy\n".repeat(2));
    assert!(!lab.ok("zpool status -e tank").contains("mirror-0"));
}

/// Destroys the blocks on a device of a file that was filled with this byte.
fn damage(device: &str, filled: u8) {
    let mut bytes = std::fs::read(device).unwrap();
    let mut hit = 0;
    // between the labels, in each record once
    for sector in bytes[4 << 20..].chunks_mut(64 << 10).map(|record| &mut record[8 << 10..9 << 10]) {
        if sector.iter().all(|byte| *byte == filled) {
            sector[..512].fill(!filled);
            hit += 1;
        }
    }
    assert!(hit > 10, "{hit}");
    std::fs::write(device, bytes).unwrap();
}

/// READ, WRITE and CKSUM of the pool, its vdev and the leaves.
fn errors(lab: &Lab) -> Vec<[u64; 3]> {
    let text = lab.ok("zpool status -p tank");
    let lines = text.lines().filter(|line| line.contains("ONLINE") && !line.contains("state:"));
    let numbers = |line: &str| -> Vec<u64> { line.split_whitespace().filter_map(|word| word.parse().ok()).collect() };
    lines.map(|line| numbers(line).try_into().unwrap()).collect()
}

#[test]
fn errors_of_all_commands_are_told_until_they_are_cleared() {
    let lab = Lab::new();
    lab.ok("zpool create -m none --size 64M tank mirror /a /b");
    lab.ok("zfs create -o compression=off tank/files");
    assert_eq!(lab.session.feed(&["put", "tank/files:/data"], &vec![7; 6 << 20]).code, 0);
    lab.ok("zfs snapshot tank/files@s");
    let none = vec![[0; 3]; 4];
    assert_eq!(errors(&lab), none);
    damage(&lab.path("b"), 7);
    assert_eq!(lab.ok("zpool status -x"), "all pools are healthy\n");
    lab.ok("zpool scrub tank");
    let told = lab.ok("zpool status -x");
    for words in ["One or more devices has experienced an unrecoverable error.", "msg/ZFS-8000-9P", "'zpool clear'"] {
        assert!(told.contains(words), "{told}");
    }
    let scrubbed = errors(&lab);
    assert_eq!(scrubbed[..3], none[..3], "{told}");
    assert!(scrubbed[3] == [0, 0, 48], "{scrubbed:?}");
    assert_eq!(errors(&lab), scrubbed);
    let json = lab.session.json(&["zpool", "status", "-j", "--json-int", "tank"]);
    let leaf = &json["pools"]["tank"]["vdevs"]["tank"]["vdevs"]["mirror-0"]["vdevs"][&lab.path("b")];
    assert_eq!(leaf["checksum_errors"], scrubbed[3][2]);
    let property = lab.ok("zpool get -Hp -o value checksum_errors tank /b");
    assert_eq!(property.trim().parse(), Ok(scrubbed[3][2]));
    let unhealthy = lab.ok("zpool status -e tank");
    assert!(unhealthy.contains(&lab.path("b")) && !unhealthy.contains(&lab.path("a")), "{unhealthy}");

    // one device is cleared alone; what is above it is cleared with all below
    lab.ok("zpool clear tank /a");
    assert_eq!(errors(&lab), scrubbed);
    lab.fails("zpool clear tank /c", 1, "cannot clear errors for DIR/c: no such device in pool");
    lab.ok("zpool clear tank mirror-0");
    assert_eq!(errors(&lab), none);
    assert_eq!(lab.ok("zpool status -x"), "all pools are healthy\n");

    // commands that only read count the errors they meet
    damage(&lab.path("b"), 7);
    let sent = lab.session.run(&["zfs", "send", "tank/files@s"]);
    assert_eq!((sent.code, sent.err.as_str()), (0, ""));
    let read = errors(&lab);
    assert!(read[3][2] > 0 && read[3][2] < scrubbed[3][2], "{read:?}");
    lab.ok("zpool scrub tank");
    assert_eq!(errors(&lab)[3][2], read[3][2] + scrubbed[3][2]);
    lab.ok("zpool clear tank");
    assert_eq!(errors(&lab), none);

    // the counts can be lost, which is no reason to fail; an export ends them
    damage(&lab.path("a"), 7);
    lab.ok("zpool scrub tank");
    assert!(errors(&lab)[2][2] > 0);
    let entries = std::fs::read_dir(lab.session.state()).unwrap().map(|entry| entry.unwrap().path());
    let record = entries.into_iter().find(|path| path.extension().is_some_and(|end| end == "io")).unwrap();
    let kept = std::fs::read(&record).unwrap();
    std::fs::write(&record, &kept[..kept.len() / 2]).unwrap();
    assert_eq!(errors(&lab), none);
    std::fs::write(&record, &kept).unwrap();
    lab.ok("zpool export tank");
    assert!(!record.exists());
    std::fs::write(&record, &kept).unwrap();
    lab.session.ok(&["zpool", "import", "-d", lab.dir(), "tank"]);
    assert_eq!(errors(&lab), none);
    lab.export_and_judge("tank");
}

#[test]
fn another_command_is_waited_for() {
    let lab = Lab::new();
    lab.ok("zpool create -m none --size 64M tank /a");
    lab.ok("zfs create -o compression=off tank/files");
    assert_eq!(lab.session.feed(&["put", "tank/files:/data"], &vec![7; 8 << 20]).code, 0);
    let scrub = || {
        let child = Command::new(env!("CARGO_BIN_EXE_zuse"))
            .args(["-o", "vdev_latency_ms=20", "zpool", "scrub", "tank"])
            .env("ZUSE_STATE", lab.session.state())
            .spawn()
            .unwrap();
        let begun = std::time::Instant::now();
        while !lab.ok("zpool status tank").contains("scrub in progress") {
            assert!(begun.elapsed() < Duration::from_secs(120), "the scrub does not begin");
            std::thread::sleep(Duration::from_millis(10));
        }
        child
    };
    let mut child = scrub();
    let told = lab.ok("zpool wait -t scrub tank 60");
    assert!(told.starts_with("   SCRUB\n") && told.lines().count() == 2, "{told}");
    assert!(lab.ok("zpool status tank").contains("scrub repaired 0B"), "{told}");
    assert!(child.wait().unwrap().success());

    // a scrub that no command runs any more is resumed
    let mut child = scrub();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(lab.ok("zpool wait -t free,discard tank"), "");
    assert!(lab.ok("zpool status tank").contains("scrub in progress"));
    assert_eq!(lab.ok("zpool wait tank"), "");
    assert!(lab.ok("zpool status tank").contains("scrub repaired 0B"));
    lab.export_and_judge("tank");
}

#[test]
fn a_device_that_was_away_is_not_blamed_for_what_it_missed() {
    let lab = Lab::new();
    lab.ok("zpool create -m none --size 64M tank mirror /a /b");
    lab.ok("zpool export tank");
    std::fs::rename(lab.path("a"), lab.path("away")).unwrap();
    std::fs::create_dir(lab.path("x")).unwrap();
    std::fs::rename(lab.path("away"), lab.path("x/a")).unwrap();
    lab.ok("zpool import -d / tank");
    lab.ok("zpool set comment=missed tank");
    lab.ok("zpool export tank");
    std::fs::rename(lab.path("x/a"), lab.path("a")).unwrap();
    lab.ok("zpool import -d / tank");
    for line in ["zpool set comment=seen tank", "zpool status tank"] {
        lab.ok(line);
    }
    let status = lab.ok("zpool status -p tank");
    let a = status.lines().find(|line| line.trim().starts_with(&lab.path("a"))).unwrap().to_owned();
    assert_eq!(a.split_whitespace().skip(1).collect::<Vec<_>>(), ["ONLINE", "0", "0", "0"], "{status}");
}

#[test]
fn a_txg_whose_sync_takes_long_is_told_of() {
    let lab = Lab::new();
    lab.ok("zpool create -m none --size 64M tank /a");
    lab.ok("zfs create -o compression=off tank/files");
    // one write at a time, and each takes a while
    let words = ["-o", "zfs_vdev_max_active=1", "-o", "vdev_latency_ms=60", "-o", "zfs_deadman_synctime_ms=20"];
    let put = [&words[..], &["-o", "zfs_deadman_checktime_ms=1000", "put", "tank/files:/data"]].concat();
    let run = lab.session.feed(&put, &vec![7; 8 << 20]);
    assert_eq!(run.code, 0, "{run:?}");
    let line = run.err.lines().find(|line| line.contains("the sync of txg ")).unwrap_or_else(|| panic!("{run:?}"));
    assert!(line.starts_with("zuse: tank: ") && line.contains(" is not done after "), "{line}");
    let events = lab.ok("zpool events -v tank");
    let event = events.split("\n\n").find(|event| event.contains("ereport.fs.zfs.deadman")).unwrap_or_default();
    assert!(
        event.contains("zio_txg = 0x") && event.contains("zio_delta = 0x") && !event.contains("vdev_guid"),
        "{events}"
    );
}
