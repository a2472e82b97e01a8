//! A state folder whose owner is not trusted, as root's commands may be told to use another user's; and files that other commands have for themselves.
#![allow(clippy::unwrap_used)]

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base::{Guid, Txg};
use pool::{Readers, SuspendWatch};
use site::{Front, Silent, agent, events, iostats, left, readers, suspended, writing};

/// Set in a process that a test starts, to what it does.
const CHILD: &str = "ZUSE_SITE_CHILD";
const POOL: Guid = Guid(5);

/// Files of the state, and its folders.
const FILES: [&str; 6] = ["events", "5.left", "5.io", "5.suspended", "5.clear", "6.json"];
const FOLDERS: [&str; 3] = ["readers", "given-up", "holds"];

/// Runs this test again, in a process with this state folder, which does `what`. The process must end.
fn run(test: &str, what: &str, state: &Path) {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", test, "--nocapture"]).env(CHILD, what).env("ZUSE_STATE", state);
    let mut child = child.spawn().unwrap();
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > Duration::from_secs(120) {
            child.kill().unwrap();
            panic!("{what}: it waits forever");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(child.wait().unwrap().success(), "{what}");
}

/// Uses everything in the state folder, as far as it can be used.
fn use_all() {
    let front: Arc<dyn Front> = Arc::new(Silent);
    left::note(POOL, Txg(7));
    let _noted = left::of(POOL);
    let _cleared = events::clear();
    let _events = events::since(0);
    iostats::clear(POOL, |_| true);
    let _record = iostats::record(POOL);
    let _suspended = suspended::of(POOL);
    let hooks = writing::hooks(&front);
    let _wanted = hooks.suspend_watch.as_ref().and_then(|watch: &Arc<dyn SuspendWatch>| watch.clear_wanted(POOL));
    let _records = site::records::all(&|_| ());
    let _dropped = agent::drop_pool(POOL);
    let reading = readers::Reading::begin();
    let _oldest = readers::OtherReaders.oldest(POOL);
    drop(readers::OtherReaders.overtake_all(POOL));
    drop(reading);
    let others = hooks.held_elsewhere.unwrap();
    others.opened(POOL, base::ObjectId(1));
    let _held = others.is_held(POOL, base::ObjectId(2));
    drop(others.freeze(POOL));
}

fn is_child() -> bool {
    let child = std::env::var_os(CHILD).is_some();
    if child {
        use_all();
    }
    child
}

/// A state folder of another user, if this test may make one, in which a pool is imported.
fn state_of_another(dir: &Path) -> std::path::PathBuf {
    let state = dir.join("state");
    fs::create_dir(&state).unwrap();
    fs::write(state.join("5.json"), "{}").unwrap();
    if rustix::process::geteuid().is_root() {
        chown(&state, Some(1000), Some(1000)).unwrap();
    }
    state
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn links_in_the_state_folder_lead_nowhere() {
    if is_child() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (state, outside) = (state_of_another(dir.path()), dir.path().join("outside"));
    fs::create_dir(&outside).unwrap();
    for name in FILES {
        fs::write(outside.join(name), "victim").unwrap();
        symlink(outside.join(name), state.join(name)).unwrap();
    }
    for name in FOLDERS {
        fs::create_dir(outside.join(name)).unwrap();
        fs::write(outside.join(name).join("5.victim.held"), "victim").unwrap();
        symlink(outside.join(name), state.join(name)).unwrap();
    }
    // one that only its owner may use, as the agent's folder is
    let (own, agent) = (outside.join("own"), state.join(format!("agent.{}", rustix::process::geteuid().as_raw())));
    fs::create_dir(&own).unwrap();
    fs::set_permissions(&own, Permissions::from_mode(0o700)).unwrap();
    symlink(&own, agent).unwrap();
    run("links_in_the_state_folder_lead_nowhere", "links", &state);
    assert!(fs::read_dir(&own).unwrap().next().is_none());
    for name in FILES {
        assert_eq!(fs::read_to_string(outside.join(name)).unwrap(), "victim", "{name}");
    }
    for name in FOLDERS {
        let folder = outside.join(name);
        assert_eq!(fs::metadata(&folder).unwrap().uid(), rustix::process::geteuid().as_raw(), "{name}");
        let left: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["5.victim.held"], "{name}");
    }
}

#[test]
fn files_outside_are_not_written_through_another_name() {
    if is_child() {
        return;
    }
    // in one's own folder that is one's own business
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let state = state_of_another(dir.path());
    for name in ["events", "5.left", "5.io"] {
        fs::write(dir.path().join(name), "victim").unwrap();
        fs::hard_link(dir.path().join(name), state.join(name)).unwrap();
    }
    run("files_outside_are_not_written_through_another_name", "names", &state);
    for name in ["events", "5.left", "5.io"] {
        assert_eq!(fs::read_to_string(dir.path().join(name)).unwrap(), "victim", "{name}");
    }
}

#[test]
fn pipes_in_the_state_folder_keep_nobody() {
    if is_child() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let state = state_of_another(dir.path());
    let pipe = |path: &Path| {
        let mode = rustix::fs::Mode::from_raw_mode(0o666);
        rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    };
    FILES.iter().for_each(|name| pipe(&state.join(name)));
    pipe(&state.join(format!("agent.{}", rustix::process::geteuid().as_raw())));
    for (folder, name) in FOLDERS.iter().zip(["a", "5.1", "5.lock"]) {
        fs::create_dir(state.join(folder)).unwrap();
        pipe(&state.join(folder).join(name));
        pipe(&state.join(folder).join("5.1.1.held"));
    }
    run("pipes_in_the_state_folder_keep_nobody", "pipes", &state);
}

/// Files that others may open they may lock, and keep commands waiting.
#[test]
fn files_of_the_state_are_private_and_the_folders_owners() {
    if is_child() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let state = state_of_another(dir.path());
    fs::create_dir(state.join("holds")).unwrap();
    fs::set_permissions(state.join("holds"), Permissions::from_mode(0o755)).unwrap();
    run("files_of_the_state_are_private_and_the_folders_owners", "modes", &state);
    let owner = fs::metadata(&state).unwrap().uid();
    for name in FOLDERS {
        let folder = state.join(name);
        assert_eq!(mode(&folder), 0o700, "{name}");
        assert!(name == "holds" || fs::metadata(&folder).unwrap().uid() == owner, "{name}");
    }
    for name in ["5.left", "5.io", "holds/5.lock"] {
        assert_eq!((mode(&state.join(name)), fs::metadata(state.join(name)).unwrap().uid()), (0o600, owner), "{name}");
    }
    let deep = dir.path().join("new/state");
    run("files_of_the_state_are_private_and_the_folders_owners", "modes", &deep);
    assert_eq!((mode(&deep), mode(deep.parent().unwrap())), (0o700, 0o700));
}

/// A front, and what it is told of waiting.
#[derive(Default)]
struct Told(Mutex<Vec<String>>);

impl Front for Told {
    fn waiting(&self, what: &str, holder: &str) {
        self.0.lock().unwrap().push(format!("{what}{holder}"));
    }
}

#[test]
fn a_lock_that_another_command_keeps_is_waited_for_so_long_and_no_longer() {
    if std::env::var_os(CHILD).is_some() {
        base::tunable::BUSY_WAIT.set(2);
        let told = Arc::new(Told::default());
        let front: Arc<dyn Front> = told.clone();
        let others = writing::hooks(&front).held_elsewhere.unwrap();
        drop(others.freeze(POOL));
        assert!(told.0.lock().unwrap().iter().any(|line| line.contains("5.lock")));
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    fs::create_dir_all(state.join("holds")).unwrap();
    let lock = File::create(state.join("holds/5.lock")).unwrap();
    lock.lock().unwrap();
    run("a_lock_that_another_command_keeps_is_waited_for_so_long_and_no_longer", "lock", &state);
}

/// A pool that is suspended in another process: its file, which that process has locked.
fn suspend(text: &str) -> File {
    let path = site::records::folder().unwrap().join("5.suspended");
    fs::write(&path, text).unwrap();
    let file = File::open(path).unwrap();
    file.lock().unwrap();
    file
}

const SUSPENDED: &str = r#"{"cause":"gone","waits":true,"count":1,"vdevs":{}}"#;

#[test]
fn a_suspended_pool_is_one_while_its_process_writes_why() {
    if std::env::var_os(CHILD).is_some() {
        let _held = suspend("");
        let writer = std::thread::Builder::new().spawn(|| {
            std::thread::sleep(Duration::from_millis(200));
            fs::write(site::records::folder().unwrap().join("5.suspended"), SUSPENDED).unwrap();
        });
        assert_eq!(suspended::of(POOL).unwrap().cause, "gone");
        writer.unwrap().join().unwrap();
        // one that was stopped while it wrote
        fs::write(site::records::folder().unwrap().join("5.suspended"), "{").unwrap();
        let cause = suspended::of(POOL).unwrap().cause;
        assert!(cause.contains("does not say why") && cause.contains(&std::process::id().to_string()), "{cause}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    run("a_suspended_pool_is_one_while_its_process_writes_why", "suspended", dir.path());
}

#[test]
fn a_process_that_was_stopped_is_not_asked_to_clear_its_pool_forever() {
    if std::env::var_os(CHILD).is_some() {
        base::tunable::BUSY_WAIT.set(1);
        let held = suspend(SUSPENDED);
        let before = suspended::of(POOL).unwrap();
        let why = suspended::clear(POOL, &before, None).unwrap_err();
        assert!(why.contains("did not answer") && why.contains(&std::process::id().to_string()), "{why}");
        let asked = site::records::folder().unwrap().join("5.clear");
        assert!(!asked.exists());
        // one that answers, and goes on
        let holder = std::thread::Builder::new().spawn(move || {
            while fs::remove_file(&asked).is_err() {
                std::thread::sleep(Duration::from_millis(10));
            }
            drop(held);
        });
        assert_eq!(suspended::clear(POOL, &before, Some(Guid(7))), Ok(()));
        holder.unwrap().join().unwrap();
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    run("a_process_that_was_stopped_is_not_asked_to_clear_its_pool_forever", "clear", dir.path());
}
