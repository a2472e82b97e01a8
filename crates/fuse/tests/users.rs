//! Users, groups and capabilities: what the kernel decides, and what the engine does.
#![allow(clippy::unwrap_used)]

mod lab;

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

use lab::{Lab, USER};
use zpl::live::{Cred, NewFile, SetAttr, XattrMode};
use zpl::{FileFlags, PosixAce, PosixAcl, PosixTag};

/// Another user without rights.
const OTHER: u32 = USER + 1;
const GROUP: u32 = 61_300;
const POSIX: u64 = 1;
const NFS4: u64 = 2;

fn mode(lab: &Lab, name: &str) -> u32 {
    fs::metadata(lab.path(name)).unwrap().mode() & 0o7777
}

fn set_mode(lab: &Lab, name: &str, mode: u32) {
    fs::set_permissions(lab.path(name), Permissions::from_mode(mode)).unwrap();
}

/// True if a shell command succeeds for a user in some groups.
fn may(lab: &Lab, user: u32, groups: &[u32], command: &str) -> bool {
    lab.run_as(user, groups, command).status.success()
}

/// Whichever of both decides, modes bind users, and not root.
#[test]
fn modes_bind_users() {
    for acltype in [0, POSIX, NFS4] {
        let Some(lab) = Lab::new(&[("acltype", acltype)]) else { return };
        fs::write(lab.path("secret"), b"x").unwrap();
        set_mode(&lab, "secret", 0o640);
        chown(lab.path("secret"), Some(USER), Some(GROUP)).unwrap();
        assert!(may(&lab, USER, &[], "cat secret && echo >> secret"), "{acltype}");
        assert!(!may(&lab, OTHER, &[], "cat secret"), "{acltype}");
        assert!(may(&lab, OTHER, &[GROUP], "cat secret") && !may(&lab, OTHER, &[GROUP], "echo >> secret"), "{acltype}");
        assert!(!may(&lab, OTHER, &[], "chmod 777 secret") && may(&lab, USER, &[], "chmod 600 secret"), "{acltype}");
        assert!(!may(&lab, USER, &[], "chown 0 secret") && !may(&lab, USER, &[], "touch new"), "{acltype}");
        assert_eq!(fs::read(lab.path("secret")).unwrap().len(), 2);
        // a directory that may be listed, but not passed; names that root has looked up do not help
        fs::create_dir(lab.path("d")).unwrap();
        fs::write(lab.path("d/f"), b"x").unwrap();
        set_mode(&lab, "d", 0o744);
        assert!(may(&lab, OTHER, &[], "ls d") && !may(&lab, OTHER, &[], "cat d/f"), "{acltype}");
        set_mode(&lab, "d", 0o711);
        assert!(!may(&lab, OTHER, &[], "ls d") && may(&lab, OTHER, &[], "cat d/f"), "{acltype}");
        set_mode(&lab, "d", 0o700);
        assert!(!may(&lab, OTHER, &[], "test -e d/f") && !may(&lab, OTHER, &[], "cd d"), "{acltype}");
        // in a sticky directory one removes one's own
        set_mode(&lab, "d", 0o1777);
        assert_eq!(
            lab.run(USER, "umask 027; echo > d/mine; mkdir d/sub; stat -c %u:%g:%a d/mine d/sub"),
            format!("{USER}:{USER}:640\n{USER}:{USER}:750")
        );
        assert!(!may(&lab, OTHER, &[], "rm -f d/mine") && !may(&lab, OTHER, &[], "mv d/mine d/x"), "{acltype}");
        assert!(may(&lab, USER, &[], "rm d/mine && rmdir d/sub"), "{acltype}");
        lab.close();
    }
}

#[test]
fn groups_of_directories_and_set_id_bits() {
    let Some(lab) = Lab::new(&[]) else { return };
    fs::create_dir(lab.path("d")).unwrap();
    chown(lab.path("d"), None, Some(GROUP)).unwrap();
    set_mode(&lab, "d", 0o2777);
    assert_eq!(lab.run(USER, "mkdir d/e; echo > d/f; stat -c %g:%a d/e d/f"), format!("{GROUP}:2755\n{GROUP}:644"));
    // only who is in the group may set its bit
    lab.run(USER, "chmod 2755 d/f");
    assert_eq!(mode(&lab, "d/f"), 0o755);
    assert!(may(&lab, USER, &[GROUP], "chmod 2755 d/f"));
    assert_eq!(mode(&lab, "d/f"), 0o2755);
    // a write by another ends the bits; one by root does not
    set_mode(&lab, "d/f", 0o6777);
    fs::write(lab.path("d/f"), b"root").unwrap();
    assert_eq!(mode(&lab, "d/f"), 0o6777);
    lab.run(OTHER, "echo other >> d/f");
    assert_eq!(mode(&lab, "d/f"), 0o777);
    for cut in ["truncate -s 1 d/f", ": > d/f", "fallocate -p -o 0 -l 1 d/f"] {
        fs::write(lab.path("d/f"), b"some bytes").unwrap();
        set_mode(&lab, "d/f", 0o4777);
        lab.run(OTHER, cut);
        assert_eq!(mode(&lab, "d/f"), 0o777, "{cut}");
    }
    set_mode(&lab, "d/f", 0o6755);
    chown(lab.path("d/f"), Some(OTHER), None).unwrap();
    assert_eq!(mode(&lab, "d/f"), 0o755);
    lab.close();
}

/// The set-group-id bit of a file that is no program stays for members of its group alone.
#[test]
fn contents_that_a_user_changes_in_any_way_end_set_id_bits() {
    for acltype in [0, NFS4] {
        let Some(lab) = Lab::new(&[("acltype", acltype)]) else { return };
        let ways = [
            "fallocate -l 1 f",
            "fallocate -n -l 9000 f",
            "fallocate -l 9000 f",
            "fallocate -p -o 0 -l 1 f",
            "fallocate -z -o 0 -l 1 f",
            "truncate -s 1 f",
            ": > f",
            "echo >> f",
            "python3 -c 'import os; os.copy_file_range(os.open(\"g\", 0), os.open(\"f\", 1), 3)'",
        ];
        for way in ways {
            for (bits, of_group, of_others) in [(0o777, 0o777, 0o777), (0o666, 0o2666, 0o666), (0o676, 0o676, 0o676)] {
                fs::write(lab.path("g"), b"other").unwrap();
                for (groups, left) in [(&[GROUP][..], of_group), (&[], of_others)] {
                    fs::write(lab.path("f"), b"some bytes").unwrap();
                    chown(lab.path("f"), None, Some(GROUP)).unwrap();
                    set_mode(&lab, "f", 0o6000 | bits);
                    assert!(may(&lab, OTHER, groups, way), "{way}");
                    assert_eq!(mode(&lab, "f"), left, "{way} {bits:o} {groups:?}");
                    fs::remove_file(lab.path("f")).unwrap();
                }
            }
            // root keeps them, and capabilities of programs end by anybody
            fs::write(lab.path("f"), b"some bytes").unwrap();
            set_mode(&lab, "f", 0o6777);
            let set = lab.run_as(0, &[], "setcap cap_chown+ep f");
            assert!(set.status.success(), "{set:?}");
            assert!(may(&lab, 0, &[], way), "{way}");
            assert_eq!(mode(&lab, "f"), 0o6777, "{way}");
            assert_eq!(String::from_utf8_lossy(&lab.run_as(0, &[], "getcap f").stdout), "", "{way}");
        }
        lab.close();
    }
}

/// Capabilities count, those that root has given up and those that a user has.
#[test]
fn capabilities_count() {
    for acltype in [0, NFS4] {
        let Some(lab) = Lab::new(&[("acltype", acltype)]) else { return };
        fs::write(lab.path("f"), b"x").unwrap();
        set_mode(&lab, "f", 0o600);
        chown(lab.path("f"), Some(USER), Some(USER)).unwrap();
        let status = |words: &str, command: &str| {
            let mut setpriv = std::process::Command::new("setpriv");
            let setpriv = setpriv.args(words.split(' ')).args(["sh", "-c", command]).current_dir(lab.path(""));
            setpriv.stderr(std::process::Stdio::null()).status().unwrap().success()
        };
        let weak_root =
            "--inh-caps -dac_override,-dac_read_search,-fowner --bounding-set -dac_override,-dac_read_search,-fowner";
        assert!(!status(weak_root, "echo > f") && !status(weak_root, "chmod 644 f"), "{acltype}");
        let strong = "--reuid 61235 --regid 61235 --clear-groups --inh-caps +dac_override --ambient-caps +dac_override";
        assert!(status(strong, "echo > f") && !status(strong, "chmod 644 f"), "{acltype}");
        fs::create_dir(lab.path("d")).unwrap();
        set_mode(&lab, "d", 0o700);
        assert!(status(strong, "cd d") && !may(&lab, OTHER, &[], "cd d"), "{acltype}");
        lab.close();
    }
}

/// Whom the kernel lets set an attribute of the system, the engine does not ask for another capability.
#[test]
fn attributes_of_the_system_are_for_the_kernel_to_decide() {
    for acltype in [0, NFS4] {
        let Some(lab) = Lab::new(&[("acltype", acltype)]) else { return };
        fs::write(lab.path("f"), b"x").unwrap();
        let set = |name: &str| {
            let code = format!(
                "import os; os.setxattr('f', '{name}', bytes([1, 0, 0, 2] + [0, 4] + [0] * 14)); os.getxattr('f', '{name}')"
            );
            let mut setpriv = std::process::Command::new("setpriv");
            setpriv.args(["--inh-caps", "-sys_admin", "--bounding-set", "-sys_admin", "python3", "-c", &code]);
            setpriv.current_dir(lab.path("")).stderr(std::process::Stdio::null()).status().unwrap().success()
        };
        assert!(set("security.capability"), "{acltype}");
        assert!(!set("security.other") && !set("trusted.t"), "{acltype}");
        assert!(!may(&lab, USER, &[], "setfattr -n security.other -v 1 f"), "{acltype}");
        assert!(may(&lab, 0, &[], "setfattr -n security.other -v 1 f; setfattr -n trusted.t -v 1 f"), "{acltype}");
        lab.close();
    }
}

#[test]
fn posix_acls_bind_and_are_inherited() {
    let Some(lab) = Lab::new(&[("acltype", POSIX)]) else { return };
    let ace = |tag, perm| PosixAce { tag, perm };
    let list = |named| {
        let mut all = vec![(PosixTag::UserObj, 7), (PosixTag::GroupObj, 5), (PosixTag::Mask, 7), (PosixTag::Other, 0)];
        all.insert(if matches!(named, PosixTag::User(_)) { 1 } else { 2 }, (named, 7));
        PosixAcl(all.into_iter().map(|(tag, perm)| ace(tag, perm)).collect())
    };
    fs::create_dir(lab.path("d")).unwrap();
    let set = |name: &str, acl: &PosixAcl| {
        rustix::fs::setxattr(lab.path("d"), name, &acl.encode(), rustix::fs::XattrFlags::empty()).unwrap();
    };
    assert!(!may(&lab, USER, &[], "touch d/f"));
    set("system.posix_acl_access", &list(PosixTag::User(USER)));
    assert!(may(&lab, USER, &[], "touch d/f") && !may(&lab, OTHER, &[], "ls d"));
    assert_eq!(mode(&lab, "d"), 0o770);
    // a default list takes the place of the umask, and gives the files their lists
    set("system.posix_acl_default", &list(PosixTag::Group(GROUP)));
    set("system.posix_acl_access", &list(PosixTag::Group(GROUP)));
    assert!(may(&lab, OTHER, &[GROUP], "umask 077; mkdir d/sub; echo > d/g"));
    assert_eq!((mode(&lab, "d/sub"), mode(&lab, "d/g")), (0o770, 0o660));
    assert!(may(&lab, USER, &[GROUP], "echo >> d/g && touch d/sub/x") && !may(&lab, USER, &[], "cat d/g"));
    let zfs = lab.zfs();
    let file = zfs.fs().resolve(b"d/g").unwrap();
    assert!(file.posix_acl().unwrap().unwrap().0.iter().any(|ace| ace.tag == PosixTag::Group(GROUP)));
    // what changes behind the mount is seen once it is told
    let acl = list(PosixTag::User(USER)).encode();
    zfs.set_xattr(&Cred::ROOT, file.id(), b"system.posix_acl_access", &acl, XattrMode::Set).unwrap();
    lab.mounted().notifier().changed(file.id()).unwrap();
    assert!(may(&lab, USER, &[], "ls d/g; echo >> d/g") || !may(&lab, USER, &[], "ls d"));
    drop((file, zfs));
    lab.close();
}

#[test]
fn nfs4_acls_bind_and_are_set() {
    const NAME: &str = "system.nfs4_acl_xdr";
    let Some(lab) = Lab::new(&[("acltype", NFS4)]) else { return };
    fs::write(lab.path("f"), b"x").unwrap();
    set_mode(&lab, "f", 0o600);
    let get = || {
        let mut value = vec![0; 1000];
        let len = rustix::fs::getxattr(lab.path("f"), NAME, &mut value).unwrap();
        value.truncate(len);
        value
    };
    let trivial = get();
    assert_eq!((trivial.len(), trivial[1]), (8 + 3 * 20, 1), "three entries, and that it is trivial");
    // an entry more: this user may read
    let mut words: Vec<u32> = trivial.chunks(4).map(|word| u32::from_be_bytes(word.try_into().unwrap())).collect();
    words[1] += 1;
    words.splice(2..2, [0, 0, 0, 0x12_0089, USER]);
    let value: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
    assert!(!may(&lab, USER, &[], "cat f"));
    rustix::fs::setxattr(lab.path("f"), NAME, &value, rustix::fs::XattrFlags::empty()).unwrap();
    assert!(may(&lab, USER, &[], "cat f") && !may(&lab, OTHER, &[], "cat f") && !may(&lab, USER, &[], "echo >> f"));
    let mut names = vec![0; 100];
    let len = rustix::fs::listxattr(lab.path("f"), &mut names).unwrap();
    assert_eq!(&names[..len], b"system.nfs4_acl_xdr\0");
    let bad = rustix::fs::setxattr(lab.path("f"), NAME, &value[1..], rustix::fs::XattrFlags::empty());
    assert_eq!(bad, Err(rustix::io::Errno::INVAL));
    rustix::fs::removexattr(lab.path("f"), NAME).unwrap();
    assert!(get() == trivial && !may(&lab, USER, &[], "cat f"));
    let posix = rustix::fs::getxattr(lab.path("f"), "system.posix_acl_access", &mut names);
    assert_eq!(posix, Err(rustix::io::Errno::OPNOTSUPP));
    lab.close();
}

/// Who decides stays the same until the file system is unmounted, whatever the property says by then.
#[test]
fn a_new_acltype_has_no_effect_on_a_mount() {
    let set = |lab: &Lab, value| {
        let props = [("acltype".to_owned(), pool::Value::Number(value))];
        lab.spa().set_props("t", &props, pool::PropSource::Local).unwrap();
    };
    // three entries and one more: this user may do all
    let words = [0, 1, 0, 0, 0, 0x1f_01ff, USER];
    let list: Vec<String> = words.iter().flat_map(|word: &u32| word.to_be_bytes()).map(|b| b.to_string()).collect();
    let grant =
        format!("python3 -c 'import os; os.setxattr(\"f\", \"system.nfs4_acl_xdr\", bytes([{}]))'", list.join(","));
    for acltype in [0, POSIX] {
        let Some(lab) = Lab::new(&[("acltype", acltype)]) else { return };
        fs::write(lab.path("f"), b"x").unwrap();
        set_mode(&lab, "f", 0o600);
        set(&lab, NFS4);
        assert!(!may(&lab, USER, &[], &grant) && !may(&lab, 0, &[], &grant) && !may(&lab, USER, &[], "cat f"));
        assert_eq!(mode(&lab, "f"), 0o600);
        let zfs = lab.zfs();
        assert!(zfs.fs().resolve(b"f").unwrap().attrs().flags.has(FileFlags::ACL_TRIVIAL));
        drop(zfs);
        lab.close();
    }
    let Some(lab) = Lab::new(&[("acltype", NFS4)]) else { return };
    fs::write(lab.path("f"), b"x").unwrap();
    set_mode(&lab, "f", 0o600);
    assert!(!may(&lab, USER, &[], &grant) && !may(&lab, USER, &[], "cat f") && may(&lab, 0, &[], &grant));
    set(&lab, 0);
    assert!(may(&lab, USER, &[], "cat f") && !may(&lab, OTHER, &[], "cat f"));
    lab.close();
}

/// A file that somebody makes just before it is created is opened only by who may.
#[test]
fn a_name_that_appears_before_it_is_created() {
    let Some(mut lab) = Lab::unmounted(&[]) else { return };
    let mut options = fuse::Options::new("t");
    options.cache = std::time::Duration::ZERO;
    lab.mount(&options);
    fs::create_dir(lab.path("d")).unwrap();
    set_mode(&lab, "d", 0o777);
    let zfs = lab.zfs();
    let dir = zfs.fs().resolve(b"d").unwrap().id();
    let program = "import os, time
end, refused = time.time() + 3, 0
while time.time() < end:
    try:
        fd = os.open(\"d/f\", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        assert os.fstat(fd).st_uid == os.getuid()
        os.close(fd)
        os.unlink(\"d/f\")
    except (PermissionError, FileNotFoundError):
        refused += 1
    except OSError as error:
        assert error.errno == 116, error
print(refused > 0)";
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                if zfs.create(&Cred::ROOT, dir, b"f", &NewFile::new(zpl::Kind::File, 0o600)).is_ok() {
                    std::thread::yield_now();
                    // it may be the user's by now
                    let _ = zfs.unlink(&Cred::ROOT, dir, b"f");
                }
            }
        });
        let out = lab.run_as(USER, &[], &format!("python3 -c '{program}'"));
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(String::from_utf8_lossy(&out.stdout).trim(), "True", "{}", String::from_utf8_lossy(&out.stderr));
    });
    drop(zfs);
    lab.close();
}

/// `access` of a set-uid program asks for who runs it, with his groups.
#[test]
fn access_is_answered_for_the_real_user() {
    let Some(lab) = Lab::new(&[("acltype", NFS4)]) else { return };
    fs::write(lab.path("f"), b"x").unwrap();
    chown(lab.path("f"), None, Some(GROUP)).unwrap();
    set_mode(&lab, "f", 0o640);
    let asks = |groups: &str| {
        let (user, other) = (USER.to_string(), OTHER.to_string());
        let mut setpriv = std::process::Command::new("setpriv");
        setpriv.args(["--ruid", &user, "--euid", &other, "--rgid", &user, "--egid", &other, "--groups", groups]);
        let code = "import os, sys; sys.exit(0 if os.access(\"f\", os.R_OK) else 1)";
        setpriv.env("PATH", "/usr/bin:/bin");
        setpriv.args(["python3", "-c", code]).current_dir(lab.path("")).status().unwrap().success()
    };
    assert!(asks(&GROUP.to_string()) && !asks(&OTHER.to_string()));
    lab.close();
}

#[test]
fn flags_that_only_the_engine_knows_bind_all() {
    let Some(lab) = Lab::new(&[]) else { return };
    fs::write(lab.path("f"), b"x").unwrap();
    let zfs = lab.zfs();
    let id = base::ObjectId(fs::metadata(lab.path("f")).unwrap().ino());
    let flags = |flags| zfs.setattr(&Cred::ROOT, id, &SetAttr { flags: Some(flags), ..SetAttr::default() }).unwrap();
    flags(FileFlags::IMMUTABLE);
    assert_eq!(fs::write(lab.path("f"), b"y").unwrap_err().raw_os_error(), Some(1));
    assert_eq!(fs::remove_file(lab.path("f")).unwrap_err().raw_os_error(), Some(1));
    assert_eq!(fs::read(lab.path("f")).unwrap(), b"x");
    flags(FileFlags::APPENDONLY);
    assert!(may(&lab, 0, &[], "echo >> f") && !may(&lab, 0, &[], "echo > f"));
    flags(FileFlags(0));
    assert!(may(&lab, 0, &[], "echo > f"));
    drop(zfs);
    lab.close();
}
