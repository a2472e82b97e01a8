//! What programs read beside the commands: kstats and tunables of a server as files, and its metrics.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

#[path = "support/until.rs"]
mod until;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use until::{until, until_served};

struct World {
    dir: tempfile::TempDir,
    server: Option<Child>,
}

fn can_mount() -> bool {
    let may = File::options().read(true).write(true).open("/dev/fuse").is_ok() && rustix::process::geteuid().is_root();
    assert!(may || std::env::var_os("ZUSE_FUSE").is_none_or(|word| word != "require"), "nothing can be mounted here");
    may
}

impl World {
    fn new() -> World {
        let world = World { dir: tempfile::tempdir().unwrap(), server: None };
        for folder in ["state", "bin", "root", "k"] {
            fs::create_dir(world.path(folder)).unwrap();
        }
        for tool in ["zfs", "zpool", "zuse"] {
            std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_zuse"), world.path("bin").join(tool)).unwrap();
        }
        for disk in ["disk", "disk2"] {
            File::create(world.path(disk)).unwrap().set_len(128 << 20).unwrap();
        }
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join(name)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", self.path("bin").display());
        command.env("ZUSE_STATE", self.path("state")).env("PATH", path).env("TZ", "UTC").current_dir(self.dir.path());
        command.env("ZUSE_ON_DEMAND", "no").env("R", self.path("root"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Begins to serve; what it prints is returned with it.
    fn serve(&mut self, options: &[&str]) -> BufReader<std::process::ChildStdout> {
        let mut command = self.command(env!("CARGO_BIN_EXE_zuse"));
        let mut child = command.arg("serve").args(options).stderr(Stdio::inherit()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        self.server = Some(child);
        until_served(&self.path("state/server.socket"));
        out
    }

    fn output(&self, line: &str) -> Output {
        self.command("sh").arg("-c").arg(line).output().unwrap()
    }

    #[track_caller]
    fn ok(&self, line: &str) -> String {
        let done = self.output(line);
        assert!(done.status.success(), "{line}: {done:?}");
        String::from_utf8(done.stdout).unwrap()
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.path("k").join(file)).unwrap_or_else(|e| panic!("{file}: {e}"))
    }

    /// A figure of a named kstat.
    fn figure(&self, file: &str, name: &str) -> u64 {
        let text = self.read(file);
        let mut words = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let found = words.find(|words| words.first() == Some(&name)).unwrap_or_else(|| panic!("{file}: {name}"));
        assert_eq!((found.len(), found[1]), (3, "4"), "{file}: {name}");
        found[2].parse().unwrap()
    }

    fn names(&self, directory: &str) -> Vec<String> {
        let all = fs::read_dir(self.path("k").join(directory)).unwrap();
        let mut names: Vec<String> = all.map(|one| one.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn end(&mut self) {
        let mut server = self.server.take().unwrap();
        kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
        assert!(server.wait().unwrap().success());
    }

    fn kill(&mut self) {
        let mut server = self.server.take().unwrap();
        server.kill().unwrap();
        server.wait().unwrap();
    }

    /// What is mounted below this world.
    fn mounted(&self) -> Vec<String> {
        let root = self.path("").display().to_string();
        let table = fs::read_to_string("/proc/self/mounts").unwrap();
        let words = table.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        words.filter(|words| words[1].starts_with(&root)).map(|words| words[1].to_owned()).collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
        for point in self.mounted().iter().rev() {
            let _ = Command::new("umount").args(["-l", point]).status();
        }
    }
}

#[test]
fn kstats_have_the_layout_and_the_figures_of_openzfs() {
    if !can_mount() {
        return;
    }
    let mut world = World::new();
    drop(world.serve(&["--kstat", "k"]));
    assert_eq!(world.names(""), ["kstat", "parameters"]);
    assert!(world.names("kstat/zfs").contains(&"arcstats".to_owned()));
    // files say no size, and are read to their end
    assert_eq!(fs::metadata(world.path("k/kstat/zfs/arcstats")).unwrap().len(), 0);
    let text = world.read("kstat/zfs/arcstats");
    let head: Vec<&str> = text.lines().next().unwrap().split(' ').collect();
    assert_eq!(head[1..5], ["1", "0x01", "149", "40528"], "{text}");
    assert!(head[6].parse::<u64>().unwrap() > head[5].parse().unwrap(), "{text}");
    assert_eq!(text.lines().nth(1), Some("name                            type data"));

    // a pool comes, with its datasets as they are mounted
    world.ok("zpool create -R $R t disk && zfs create t/a");
    let files = world.names("kstat/zfs/t");
    for name in ["guid", "state", "txgs", "multihost", "reads", "iostats", "dmu_tx_assign", "log_spacemaps"] {
        assert!(files.iter().any(|known| known == name), "{files:?}");
    }
    assert_eq!(world.read("kstat/zfs/t/state"), "ONLINE\n");
    assert_eq!(world.read("kstat/zfs/t/guid"), world.ok("zpool get -Ho value guid t"));
    let number = world.ok("zfs get -Ho value objsetid t/a").trim().parse::<u64>().unwrap();
    let of_a = format!("kstat/zfs/t/objset-0x{number:x}");
    assert!(world.read(&of_a).contains("\ndataset_name                    7    t/a\n"));
    world.ok("dd if=/dev/urandom of=$R/t/a/f bs=64k count=16 2>&1 && zpool sync t");
    assert_eq!((world.figure(&of_a, "writes"), world.figure(&of_a, "nwritten")), (16, 1 << 20));
    world.ok("zfs unmount t/a && zfs mount t/a && dd if=$R/t/a/f of=/dev/null bs=64k 2>&1 && rm $R/t/a/f");
    assert!(world.figure(&of_a, "reads") >= 1 && world.figure(&of_a, "nread") == 1 << 20);
    until("the file is freed", || world.figure(&of_a, "nunlinked") == 1);
    assert_eq!(world.figure(&of_a, "nunlinks"), 1);
    // a file that is kept open shows new figures from its beginning on
    let mut kept = File::open(world.path("k").join(&of_a)).unwrap();
    let mut before = String::new();
    kept.read_to_string(&mut before).unwrap();
    world.ok("echo x > $R/t/a/g && zfs rename t/a t/b");
    std::io::Seek::rewind(&mut kept).unwrap();
    let mut after = String::new();
    kept.read_to_string(&mut after).unwrap();
    assert!(before.contains(" t/a\n") && after.contains(" t/b\n"), "{before}{after}");
    let txgs = world.read("kstat/zfs/t/txgs");
    assert!(
        txgs.starts_with("txg      birth            state ndirty       nread        nwritten     reads    writes "),
        "{txgs}"
    );
    let rows: Vec<Vec<&str>> = txgs.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
    assert!(rows.iter().all(|row| row.len() == 12) && rows.last().unwrap()[2] == "O", "{txgs}");
    assert!(rows.iter().any(|row| row[2] == "C" && row[5].parse::<u64>().unwrap() >= 1 << 20), "{txgs}");
    assert!(world.figure("kstat/zfs/t/iostats", "arc_write_bytes") >= 1 << 20);
    assert!(world.figure("kstat/zfs/dmu_tx", "dmu_tx_assigned") > 0);

    // it goes, and what all pools did stays
    let (hits, assigned) =
        (world.figure("kstat/zfs/arcstats", "hits"), world.figure("kstat/zfs/dmu_tx", "dmu_tx_assigned"));
    assert!(hits > 0);
    world.ok("zpool export t");
    assert!(!world.path("k/kstat/zfs/t").exists() && !world.names("kstat/zfs").contains(&"t".to_owned()));
    assert!(world.figure("kstat/zfs/arcstats", "hits") >= hits);
    assert!(world.figure("kstat/zfs/dmu_tx", "dmu_tx_assigned") >= assigned);
    // one that is only read is there when the server has opened it
    world.ok("zpool import -d disk -o readonly=on -N t");
    world.end();
    assert_eq!(world.mounted(), Vec::<String>::new());
    drop(world.serve(&["--kstat", "k"]));
    until("it is open", || world.path("k/kstat/zfs/t").exists());
    assert_eq!(world.names("kstat/zfs/t"), ["guid", "state"]);
    assert_eq!(world.read("kstat/zfs/t/state"), "ONLINE\n");
    world.end();
    assert_eq!(world.mounted(), Vec::<String>::new());
}

#[test]
fn parameters_are_tunables_of_the_server() {
    if !can_mount() {
        return;
    }
    let mut world = World::new();
    drop(world.serve(&["--kstat", "k"]));
    assert_eq!(world.read("parameters/zfs_txg_timeout"), "5\n");
    world.ok("echo 9 > k/parameters/zfs_txg_timeout");
    assert_eq!(world.read("parameters/zfs_txg_timeout"), "9\n");
    for bad in ["many\n", "-1", "\n", &"1".repeat(5000)] {
        let refused = fs::write(world.path("k/parameters/zfs_txg_timeout"), bad);
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(22), "{bad}");
    }
    assert_eq!(world.read("parameters/zfs_txg_timeout"), "9\n");
    // nor is one taken that the engine could not work with
    for (name, bad) in [("spa_slop_shift", "64"), ("busy_wait", "1e9")] {
        let before = world.read(&format!("parameters/{name}"));
        let refused = fs::write(world.path("k/parameters").join(name), bad);
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(22), "{name} {bad}");
        assert_eq!(world.read(&format!("parameters/{name}")), before);
    }
    // they are root's to change, and figures are nobody's
    let modes = |file: &str| fs::metadata(world.path("k").join(file)).unwrap().mode() & 0o7777;
    assert_eq!((modes("parameters/zfs_txg_timeout"), modes("kstat/zfs/arcstats")), (0o644, 0o444));
    assert!(fs::write(world.path("k/kstat/zfs/arcstats"), "0").is_err());
    assert!(fs::write(world.path("k/parameters/new"), "0").is_err());
    assert!(fs::remove_file(world.path("k/parameters/zfs_txg_timeout")).is_err());
    // others read
    let read = "setpriv --reuid 65534 --regid 65534 --clear-groups cat k/parameters/zfs_txg_timeout";
    let may_enter = fs::set_permissions(world.dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).is_ok();
    if may_enter {
        assert_eq!(world.ok(read), "9\n");
    }
    // a server that was killed leaves a mount that the next one takes away
    world.kill();
    assert_eq!(fs::read_dir(world.path("k")).unwrap_err().raw_os_error(), Some(107));
    drop(world.serve(&["--kstat", "k"]));
    assert_eq!(world.read("parameters/zfs_txg_timeout"), "5\n");
    assert_eq!(world.mounted().len(), 1);
    world.end();
    assert_eq!(world.mounted(), Vec::<String>::new());
}

/// Asks for the metrics, and checks their form: `# TYPE` before the samples of each, and the end.
fn scrape(stream: impl Read + Write, accept: &str) -> String {
    let mut stream = stream;
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    let mut types = std::collections::HashSet::new();
    for line in body.lines() {
        match line.strip_prefix("# TYPE ") {
            Some(kind) => assert!(types.insert(kind.split(' ').next().unwrap().to_owned()), "twice: {line}"),
            None if line.starts_with('#') => {}
            None => {
                let name = line.split(['{', ' ']).next().unwrap();
                let suffixes = ["", "_total", "_sum", "_count", "_bucket"];
                let known = suffixes.iter().any(|end| name.strip_suffix(end).is_some_and(|name| types.contains(name)));
                assert!(known, "{line}");
                let value = line.rsplit(' ').next().unwrap();
                assert!(value.parse::<f64>().is_ok(), "{line}");
            }
        }
    }
    body.to_owned()
}

/// The value of a sample.
fn sample(text: &str, name: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

#[test]
fn metrics_tell_of_the_server_its_pools_vdevs_and_datasets() {
    let mut world = World::new();
    let mut out = world.serve(&["--metrics", "127.0.0.1:0", "--no-mounts"]);
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("metrics: http://").unwrap().strip_suffix("/metrics").unwrap().to_owned();
    let ask = || scrape(TcpStream::connect(&address).unwrap(), "application/openmetrics-text; version=1.0.0");
    let empty = ask();
    assert!(empty.ends_with("# EOF\n") && sample(&empty, "zuse_server_connections").is_some(), "{empty}");
    assert!(!empty.contains("zuse_pool_"), "{empty}");
    world.ok(
        "zpool create -O mountpoint=none t mirror disk disk2 && zfs create -o quota=50m t/a && zfs create -V 8m t/v",
    );
    world.ok("head -c 3000000 /dev/urandom | zuse put t/a:/f && zpool scrub -w t");
    let disk = world.path("disk").display().to_string();
    // what was done is told once a second
    let bytes = format!("zuse_vdev_bytes_total{{pool=\"t\",vdev=\"{disk}\",op=\"write\"}}");
    until("the bytes are told", || sample(&ask(), &bytes).is_some_and(|n| n > 3e6));
    let text = ask();
    let get = |name: &str| sample(&text, name).unwrap_or_else(|| panic!("{name}: {text}"));
    assert_eq!(get("zuse_pool_state{pool=\"t\",state=\"online\"}"), 1.0);
    assert_eq!(get("zuse_pool_state{pool=\"t\",state=\"suspended\"}"), 0.0);
    let size: f64 = world.ok("zpool list -Hpo size t").trim().parse().unwrap();
    assert_eq!(get("zuse_pool_size_bytes{pool=\"t\"}"), size);
    assert_eq!(get("zuse_pool_allocated_bytes{pool=\"t\"}") + get("zuse_pool_free_bytes{pool=\"t\"}"), size);
    assert_eq!(get("zuse_pool_data_errors{pool=\"t\"}"), 0.0);
    assert_eq!(get("zuse_pool_scan_running{pool=\"t\",scan=\"scrub\"}"), 0.0);
    assert!(get("zuse_pool_scan_examined_bytes{pool=\"t\",scan=\"scrub\"}") > 3e6);
    assert_eq!(get("zuse_vdev_size_bytes{pool=\"t\",vdev=\"mirror-0\"}"), size);
    assert_eq!(get(&format!("zuse_vdev_errors_total{{pool=\"t\",vdev=\"{disk}\",kind=\"checksum\"}}")), 0.0);
    assert!(get(&format!("zuse_vdev_latency_seconds_count{{pool=\"t\",vdev=\"{disk}\",op=\"write\"}}")) > 0.0);
    assert!(get("zuse_dataset_used_bytes{pool=\"t\",dataset=\"t/a\"}") > 3e6);
    assert_eq!(get("zuse_dataset_quota_bytes{pool=\"t\",dataset=\"t/a\"}"), f64::from(50 << 20));
    assert_eq!(get("zuse_dataset_volume_size_bytes{pool=\"t\",dataset=\"t/v\"}"), f64::from(8 << 20));
    assert!(get("zuse_dataset_used_bytes{pool=\"t\",dataset=\"t\"}") > 3e6);
    assert!(get("zuse_pool_txg{pool=\"t\"}") > 4.0 && get("zuse_pool_transactions_total{pool=\"t\"}") > 0.0);
    assert!(get("zuse_server_requests_total{kind=\"command\"}") >= 5.0);
    assert!(get("zuse_arc_size_bytes") > 0.0);
    // clients that say nothing keep nobody from the figures, nor the server from its end
    let _silent: Vec<TcpStream> = (0..4).map(|_| TcpStream::connect(&address).unwrap()).collect();
    let old = scrape(TcpStream::connect(&address).unwrap(), "text/plain");
    assert!(!old.contains("# EOF") && old.contains("\n# TYPE zuse_vdev_bytes_total counter\n"), "{old}");
    world.ok("zpool export t");
    assert!(!ask().contains("zuse_pool_"));
    world.end();
    assert!(TcpStream::connect(&address).is_err());
}

#[test]
fn a_suspended_pool_holds_up_neither_a_scrape_nor_the_kstats() {
    if !can_mount() {
        return;
    }
    let mut world = World::new();
    let socket = world.path("m.sock");
    drop(world.serve(&["--metrics", "unix:m.sock", "--kstat", "k", "--no-mounts"]));
    let ask = || scrape(UnixStream::connect(&socket).unwrap(), "application/openmetrics-text");
    world.ok("zpool create -O mountpoint=none t disk && zpool create -O mountpoint=none u disk2");
    assert_eq!(sample(&ask(), "zuse_pool_suspended{pool=\"t\"}"), Some(0.0));
    // its only device is gone
    fs::remove_file(world.path("disk")).unwrap();
    let mut writer = world.command("sh").arg("-c").arg("head -c 1000000 /dev/urandom | zuse put t:/f").spawn().unwrap();
    until("it is suspended", || world.read("kstat/zfs/t/state") == "SUSPENDED\n");
    for _ in 0..3 {
        let text = ask();
        assert_eq!(sample(&text, "zuse_pool_suspended{pool=\"t\"}"), Some(1.0), "{text}");
        assert_eq!(sample(&text, "zuse_pool_state{pool=\"t\",state=\"suspended\"}"), Some(1.0));
        assert!(sample(&text, "zuse_dataset_used_bytes{pool=\"u\",dataset=\"u\"}").is_some(), "{text}");
    }
    for file in world.names("kstat/zfs/t") {
        assert!(world.read(&format!("kstat/zfs/t/{file}")).ends_with('\n'), "{file}");
    }
    assert!(world.figure("kstat/zfs/arcstats", "size") > 0);
    world.kill();
    let _ = writer.kill();
    let _ = writer.wait();
}

#[test]
fn bad_places_keep_a_server_from_beginning() {
    let world = World::new();
    for (options, status, message) in [
        ("--metrics host", 2, "--metrics 'host': HOST:PORT, PORT or the path of a socket is expected"),
        ("--kstat no/such", 1, "cannot mount kstats at 'no/such': No such file or directory"),
        ("--metrics no/such/socket", 2, "'no/such/socket'"),
        ("--metrics /no/such/socket", 1, "cannot answer at the address of metrics: No such file or directory"),
    ] {
        let done = world.output(&format!("zuse serve {options}"));
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.code() == Some(status) && said.contains(message), "{options}: {said}");
    }
    // nothing is left of it
    assert!(world.mounted().is_empty() && Path::new(&world.path("state")).exists());
}
