//! Permission checks (OpenZFS: `zfs_zaccess`, `zfs_zaccess_delete`; Linux: `generic_permission`, `posix_acl_permission`,
//! `may_delete`).
//!
//! Three things determine access: the flags of the file (immutable, append-only, …), which bind everybody; a list of permissions,
//! which is the mode, a POSIX ACL or an NFSv4 ACL, by property `acltype`; and the capabilities of the caller, which override the list.
//!
//! On Linux the kernel checks the mode and the POSIX ACL, and OpenZFS's own check of an NFSv4 ACL is overruled by its policy
//! functions, which leave it to the kernel. Here all of it is checked: with `acltype=nfsv4` a nontrivial ACL is decisive,
//! as on the other systems. A kernel that has checked for itself says so by the capabilities that it lends to the caller.

use crate::{Ace, AceType, Acl, Attrs, FileFlags, Kind, PosixAcl, PosixTag, Who};

use crate::acl::modes::is_valid;
use crate::live::{Caps, Cred, Refusal};

/// The permissions that an operation requires, as NFSv4 names them (OpenZFS: `ACE_*`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Perms(pub u32);

impl Perms {
    /// Read a file, list a directory.
    pub const READ_DATA: Perms = Perms(0x1);
    /// Write a file, add a file to a directory.
    pub const WRITE_DATA: Perms = Perms(0x2);
    /// Append to a file, add a directory to a directory.
    pub const APPEND_DATA: Perms = Perms(0x4);
    /// Read extended attributes.
    pub const READ_NAMED_ATTRS: Perms = Perms(0x8);
    /// Change extended attributes.
    pub const WRITE_NAMED_ATTRS: Perms = Perms(0x10);
    /// Execute a file, traverse a directory.
    pub const EXECUTE: Perms = Perms(0x20);
    /// Remove entries of a directory.
    pub const DELETE_CHILD: Perms = Perms(0x40);
    /// Read times, sizes and the like.
    pub const READ_ATTRIBUTES: Perms = Perms(0x80);
    /// Change times and flags.
    pub const WRITE_ATTRIBUTES: Perms = Perms(0x100);
    /// Remove the file.
    pub const DELETE: Perms = Perms(0x1_0000);
    /// Read the list.
    pub const READ_ACL: Perms = Perms(0x2_0000);
    /// Change the list or the mode.
    pub const WRITE_ACL: Perms = Perms(0x4_0000);
    /// Change owner and group.
    pub const WRITE_OWNER: Perms = Perms(0x8_0000);
    /// Synchronize local access; has no effect here.
    pub const SYNCHRONIZE: Perms = Perms(0x10_0000);

    /// The permissions that change the data of a file (OpenZFS: `WRITE_MASK_DATA`).
    const CHANGES_DATA: u32 = 0x2 | 0x4 | 0x10;
    /// The permissions that only the owner has, unless a list says otherwise.
    const OWNERS: u32 = 0x10 | 0x100 | 0x4_0000 | 0x8_0000;
    /// The permissions that everybody has, unless a list says otherwise.
    const ANYONES: u32 = 0x8 | 0x80 | 0x2_0000 | 0x10_0000;

    /// Returns the permissions for `access(2)`: 4 read, 2 write, 1 execute (OpenZFS: `zfs_unix_to_v4`).
    #[must_use]
    pub fn from_rwx(rwx: u8) -> Perms {
        let of = |bit: u8, perm: Perms| if rwx & bit != 0 { perm.0 } else { 0 };
        Perms(of(4, Perms::READ_DATA) | of(2, Perms::WRITE_DATA) | of(1, Perms::EXECUTE))
    }

    /// True if any of them changes the file (OpenZFS: `WRITE_MASK`).
    pub(crate) const fn changes(self) -> bool {
        self.0 & Perms::CHANGES_DATA != 0 || self.changes_attributes()
    }

    /// True if any of them changes more than data (OpenZFS: `WRITE_MASK_ATTRS`).
    pub(crate) const fn changes_attributes(self) -> bool {
        self.0 & (0x40 | 0x100 | 0x1_0000 | 0x4_0000 | 0x8_0000) != 0
    }

    /// Returns the union of both.
    #[must_use]
    pub const fn and(self, other: Perms) -> Perms {
        Perms(self.0 | other.0)
    }

    /// Returns the mode bits that correspond to these (OpenZFS: `zfs_v4_to_unix`).
    fn rwx(self) -> u16 {
        let of = |mask: u32, bit: u16| if self.0 & mask != 0 { bit } else { 0 };
        of(Perms::READ_DATA.0, 4)
            | of(Perms::WRITE_DATA.0 | Perms::APPEND_DATA.0 | Perms::DELETE_CHILD.0, 2)
            | of(Perms::EXECUTE.0, 1)
    }
}

/// The list that determines access to a file.
#[derive(Clone, Copy, Debug)]
pub(crate) enum List<'a> {
    /// Its mode alone.
    Mode,
    /// A POSIX ACL, of which the mode is the summary.
    Posix(&'a PosixAcl),
    /// An NFSv4 ACL that is not equivalent to the mode.
    Nfs4(&'a Acl),
}

/// True if the caller is the owner, or may act as the owner (Linux: `inode_owner_or_capable`).
pub(crate) fn owns(cred: &Cred, attrs: &Attrs) -> bool {
    cred.has(Caps::FOWNER) || cred.uid == attrs.uid()
}

/// True if the caller may set the set-group-id bit on a file of this group (OpenZFS: `secpolicy_vnode_setids_setgids`).
pub(crate) fn may_set_gid_bit(cred: &Cred, gid: u32) -> bool {
    cred.has(Caps::FSETID) || cred.in_group(gid)
}

/// Checks that the caller has all of `wanted` on a file.
///
/// # Errors
/// [`Refusal::Denied`], [`Refusal::NotPermitted`].
pub(crate) fn check(cred: &Cred, attrs: &Attrs, list: List<'_>, wanted: Perms) -> Result<(), Refusal> {
    check_flags(cred, attrs, wanted)?;
    let missing = match list {
        List::Nfs4(acl) => {
            let said = by_aces(cred, attrs, acl, wanted);
            Some(Perms(said.open | said.denied)).filter(|missing| missing.0 != 0)
        }
        List::Mode | List::Posix(_) => by_mode(cred, attrs, list, wanted),
    };
    match missing {
        Some(missing) => by_privilege(cred, attrs, missing),
        None => Ok(()),
    }
}

/// Checks the flags of the file, which bind everybody (OpenZFS: `zfs_zaccess_dataset_check`).
fn check_flags(cred: &Cred, attrs: &Attrs, wanted: Perms) -> Result<(), Refusal> {
    let flags = attrs.flags;
    if wanted.0 & Perms::CHANGES_DATA != 0 && flags.has(FileFlags::IMMUTABLE) {
        return Err(Refusal::NotPermitted);
    }
    if wanted.0 & (Perms::DELETE.0 | Perms::DELETE_CHILD.0) != 0 && flags.has(FileFlags::NOUNLINK) {
        return Err(Refusal::NotPermitted);
    }
    if wanted.0 & (Perms::READ_DATA.0 | Perms::EXECUTE.0) != 0 && flags.has(FileFlags::AV_QUARANTINED) {
        return Err(Refusal::Denied);
    }
    // the DOS read-only flag acts like a list that grants no writes; it does not affect directories
    let read_only = flags.has(FileFlags::READONLY) && attrs.kind() != Kind::Directory && cred.uid != 0;
    if wanted.0 & Perms::CHANGES_DATA != 0 && read_only {
        return Err(Refusal::NotPermitted);
    }
    Ok(())
}

/// Returns the part of `wanted` that the mode, or the POSIX ACL that it summarizes, does not grant; `None` if it grants all.
fn by_mode(cred: &Cred, attrs: &Attrs, list: List<'_>, wanted: Perms) -> Option<Perms> {
    let want = wanted.rwx();
    let owner = cred.uid == attrs.uid();
    let shift = |n: u32| (attrs.mode >> n) as u16 & 7;
    let given = if owner {
        shift(6) & want == want
    } else {
        match list {
            List::Posix(acl) if attrs.mode & 0o070 != 0 => posix_gives(cred, attrs, acl, want),
            _ if cred.in_group(attrs.gid()) => shift(3) & want == want,
            _ => shift(0) & want == want,
        }
    };
    let mapped = Perms::READ_DATA.0
        | Perms::WRITE_DATA.0
        | Perms::APPEND_DATA.0
        | Perms::DELETE_CHILD.0
        | Perms::EXECUTE.0
        | Perms::ANYONES;
    let of_owner = if owner { Perms::OWNERS } else { 0 };
    let beyond = wanted.0 & !mapped & !of_owner;
    let missing = beyond | if given { 0 } else { wanted.0 & mapped & !Perms::ANYONES };
    (missing != 0).then_some(Perms(missing))
}

/// True if a POSIX ACL grants `want` to a caller who is not the owner (Linux: `posix_acl_permission`).
fn posix_gives(cred: &Cred, attrs: &Attrs, acl: &PosixAcl, want: u16) -> bool {
    let mask = acl.0.iter().find(|ace| ace.tag == PosixTag::Mask).map_or(7, |ace| ace.perm);
    let mut in_group = false;
    for ace in &acl.0 {
        match ace.tag {
            PosixTag::User(id) if id == cred.uid => return ace.perm & mask & want == want,
            PosixTag::GroupObj | PosixTag::Group(_) => {
                let gid = if let PosixTag::Group(id) = ace.tag { id } else { attrs.gid() };
                if cred.in_group(gid) {
                    in_group = true;
                    if ace.perm & want == want {
                        return ace.perm & mask & want == want;
                    }
                }
            }
            PosixTag::Other => return !in_group && ace.perm & want == want,
            PosixTag::UserObj | PosixTag::User(_) | PosixTag::Mask => {}
        }
    }
    false
}

/// The decision of an NFSv4 ACL about some permissions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Said {
    /// Permissions that an entry denies.
    denied: u32,
    /// Permissions that no entry decides.
    open: u32,
}

/// Walks an NFSv4 ACL: the first entry that mentions a permission decides it (OpenZFS: `zfs_zaccess_aces_check`, which treats
/// audit and alarm entries like allow entries; here they decide nothing).
fn by_aces(cred: &Cred, attrs: &Attrs, acl: &Acl, wanted: Perms) -> Said {
    let mut said = Said { denied: 0, open: wanted.0 & !Perms::SYNCHRONIZE.0 };
    // the owner may always read the ACL and the attributes
    if cred.uid == attrs.uid() {
        said.open &= !(Perms::READ_ACL.0 | Perms::READ_ATTRIBUTES.0);
    }
    for ace in acl.aces.iter().filter(|ace| is_valid(ace)) {
        let inherit_only = ace.flags & 0x8 != 0 && attrs.kind() == Kind::Directory;
        let spoken = ace.mask & said.open;
        if inherit_only || spoken == 0 || !is_about(cred, attrs, ace) {
            continue;
        }
        match ace.kind {
            AceType::Deny => said.denied |= spoken,
            AceType::Allow => {}
            AceType::Audit | AceType::Alarm | AceType::Other(_) => continue,
        }
        said.open &= !spoken;
        if said.open == 0 {
            break;
        }
    }
    said
}

fn is_about(cred: &Cred, attrs: &Attrs, ace: &Ace) -> bool {
    match ace.who {
        Who::Owner => cred.uid == attrs.uid(),
        Who::Group => cred.in_group(attrs.gid()),
        Who::Everyone => true,
        Who::User(id) => id.domain_index() == 0 && id.rid() == cred.uid,
        Who::NamedGroup(id) => id.domain_index() == 0 && cred.in_group(id.rid()),
    }
}

/// Applies the capabilities of the caller, by which he has missing permissions, except to execute what nobody may execute (Linux:
/// `generic_permission`, `inode_owner_or_capable`).
fn by_privilege(cred: &Cred, attrs: &Attrs, missing: Perms) -> Result<(), Refusal> {
    let is_dir = attrs.kind() == Kind::Directory;
    let given = |caps: Caps, perms: u32| if cred.has(caps) { perms } else { 0 };
    let passes = |may: bool| if may { Perms::EXECUTE.0 } else { 0 };
    let owner = Perms::WRITE_OWNER.0;
    let granted = given(Caps::DAC_OVERRIDE, !Perms::OWNERS & !Perms::EXECUTE.0)
        | given(Caps::DAC_OVERRIDE, passes(is_dir || attrs.mode & 0o111 != 0))
        | given(Caps::DAC_READ_SEARCH, Perms::READ_DATA.0 | Perms::ANYONES | passes(is_dir))
        | given(Caps::FOWNER, Perms::OWNERS & !owner)
        | given(Caps::CHOWN, owner);
    let missing = missing.0 & !granted;
    let rwx = Perms::CHANGES_DATA & !0x10 | Perms::READ_DATA.0 | Perms::EXECUTE.0 | Perms::DELETE_CHILD.0;
    match missing {
        0 => Ok(()),
        _ if missing & rwx == 0 && missing & Perms::OWNERS != 0 => Err(Refusal::NotPermitted),
        _ => Err(Refusal::Denied),
    }
}

/// A file or directory and the list that determines access to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guarded<'a> {
    /// Its attributes.
    pub attrs: &'a Attrs,
    /// Its list.
    pub list: List<'a>,
}

/// Checks that the caller may remove `file` from `dir` (OpenZFS: `zfs_zaccess_delete`). An NFSv4 ACL of the file may grant or
/// deny it; otherwise that of the directory decides.
///
/// # Errors
/// [`Refusal::Denied`], [`Refusal::NotPermitted`].
pub(crate) fn check_delete(cred: &Cred, dir: Guarded<'_>, file: Guarded<'_>) -> Result<(), Refusal> {
    let fixed = |attrs: &Attrs| attrs.flags.has(FileFlags::IMMUTABLE) || attrs.flags.has(FileFlags::NOUNLINK);
    let append_only = |attrs: &Attrs| attrs.flags.has(FileFlags::APPENDONLY);
    if fixed(file.attrs) || append_only(file.attrs) || append_only(dir.attrs) {
        return Err(Refusal::NotPermitted);
    }
    check_flags(cred, dir.attrs, Perms::WRITE_DATA.and(Perms::DELETE_CHILD))?;
    // a lookup of the file traverses the directory
    check(cred, dir.attrs, dir.list, Perms::EXECUTE)?;
    if let List::Nfs4(acl) = file.list {
        let said = by_aces(cred, file.attrs, acl, Perms::DELETE);
        match said {
            Said { denied: 0, open: 0 } => return Ok(()),
            Said { denied: 1.., .. } if !cred.has(Caps::DAC_OVERRIDE) => return Err(Refusal::Denied),
            _ => {}
        }
    }
    match dir.list {
        // either of the two permissions is enough, unless one is denied
        List::Nfs4(acl) => {
            let either = Perms::DELETE_CHILD.and(Perms::WRITE_DATA);
            let said = by_aces(cred, dir.attrs, acl, either);
            if (said.denied != 0 || said.open == either.0) && !cred.has(Caps::DAC_OVERRIDE) {
                return Err(Refusal::Denied);
            }
        }
        list => check(cred, dir.attrs, list, Perms::WRITE_DATA)?,
    }
    check_sticky(cred, dir.attrs, file.attrs)
}

/// Checks the sticky bit: in such a directory only the owner of the file, the owner of the directory, or root removes (Linux:
/// `check_sticky`).
///
/// # Errors
/// [`Refusal::NotPermitted`].
pub(crate) fn check_sticky(cred: &Cred, dir: &Attrs, file: &Attrs) -> Result<(), Refusal> {
    let sticky = dir.mode & 0o1000 != 0;
    if sticky && !owns(cred, file) && !owns(cred, dir) { Err(Refusal::NotPermitted) } else { Ok(()) }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{Fuid, PosixAce, Time};
    use base::ObjectId;

    pub(crate) fn attrs(mode: u32, flags: FileFlags) -> Attrs {
        Attrs {
            mode,
            owner: Fuid(1000),
            group: Fuid(100),
            size: 0,
            links: 1,
            generation: 1,
            parent: ObjectId(34),
            atime: Time::default(),
            mtime: Time::default(),
            ctime: Time::default(),
            crtime: Time::default(),
            flags,
            projid: None,
            rdev: None,
            xattr_dir: ObjectId(0),
            seq: None,
        }
    }

    fn cred(uid: u32, gid: u32) -> Cred {
        Cred::user(uid, gid, [7])
    }

    fn may(uid: u32, gid: u32, mode: u32, list: List<'_>, rwx: u8) -> Result<(), Refusal> {
        check(&cred(uid, gid), &attrs(mode, FileFlags(0)), list, Perms::from_rwx(rwx))
    }

    #[test]
    fn the_mode_decides_for_owner_group_and_others() {
        let file = 0o100_640;
        assert_eq!(may(1000, 1, file, List::Mode, 6), Ok(()));
        assert_eq!(may(1, 100, file, List::Mode, 4), Ok(()));
        assert_eq!(may(1, 100, file, List::Mode, 2), Err(Refusal::Denied));
        assert_eq!(may(1, 1, file, List::Mode, 4), Err(Refusal::Denied));
        // the owner is not one of the others, even if they have more permissions
        assert_eq!(may(1000, 100, 0o100_077, List::Mode, 4), Err(Refusal::Denied));
        assert_eq!(may(0, 0, 0o100_000, List::Mode, 6), Ok(()));
        assert_eq!(may(0, 0, 0o100_666, List::Mode, 1), Err(Refusal::Denied));
        assert_eq!(may(0, 0, 0o040_000, List::Mode, 7), Ok(()));
    }

    #[test]
    fn a_capability_grants_what_it_is_for() {
        let may = |caps, mode, perms| check(&cred(1, 1).with_caps(caps), &attrs(mode, FileFlags(0)), List::Mode, perms);
        let (file, dir, rw, x) = (0o100_000, 0o040_000, Perms::from_rwx(6), Perms::EXECUTE);
        assert_eq!(may(Caps::DAC_OVERRIDE, file, rw), Ok(()));
        assert_eq!(may(Caps::DAC_OVERRIDE, file, x), Err(Refusal::Denied));
        assert_eq!(may(Caps::DAC_OVERRIDE, 0o100_100, x), Ok(()));
        assert_eq!(may(Caps::DAC_OVERRIDE, dir, x), Ok(()));
        assert_eq!(may(Caps::DAC_OVERRIDE, file, Perms::WRITE_ACL), Err(Refusal::NotPermitted));
        assert_eq!(may(Caps::DAC_READ_SEARCH, file, Perms::READ_DATA), Ok(()));
        assert_eq!(may(Caps::DAC_READ_SEARCH, dir, x), Ok(()));
        assert_eq!(may(Caps::DAC_READ_SEARCH, 0o100_100, x), Err(Refusal::Denied));
        assert_eq!(may(Caps::DAC_READ_SEARCH, file, rw), Err(Refusal::Denied));
        assert_eq!(may(Caps::FOWNER, file, Perms::WRITE_ACL.and(Perms::WRITE_ATTRIBUTES)), Ok(()));
        assert_eq!(may(Caps::FOWNER, file, Perms::WRITE_OWNER), Err(Refusal::NotPermitted));
        assert_eq!(may(Caps::CHOWN, file, Perms::WRITE_OWNER), Ok(()));
        // root who has given his capabilities up is the owner of his files, and no more
        let root = Cred::ROOT.with_caps(Caps::NONE);
        assert_eq!(check(&root, &attrs(file, FileFlags(0)), List::Mode, rw), Err(Refusal::Denied));
    }

    #[test]
    fn owners_change_modes_and_others_do_not() {
        let of = |uid| check(&cred(uid, 1), &attrs(0o100_777, FileFlags(0)), List::Mode, Perms::WRITE_ACL);
        assert_eq!([of(1000), of(0), of(1)], [Ok(()), Ok(()), Err(Refusal::NotPermitted)]);
    }

    #[test]
    fn flags_bind_everybody() {
        let fixed = attrs(0o100_666, FileFlags::IMMUTABLE);
        assert_eq!(check(&cred(0, 0), &fixed, List::Mode, Perms::WRITE_DATA), Err(Refusal::NotPermitted));
        assert_eq!(check(&cred(0, 0), &fixed, List::Mode, Perms::READ_DATA), Ok(()));
        let bad = attrs(0o100_666, FileFlags::AV_QUARANTINED);
        assert_eq!(check(&cred(0, 0), &bad, List::Mode, Perms::READ_DATA), Err(Refusal::Denied));
    }

    #[test]
    fn a_posix_list_names_users_and_groups_within_its_mask() {
        let ace = |tag, perm| PosixAce { tag, perm };
        let acl = PosixAcl(vec![
            ace(PosixTag::UserObj, 6),
            ace(PosixTag::User(5), 6),
            ace(PosixTag::GroupObj, 4),
            ace(PosixTag::Group(7), 2),
            ace(PosixTag::Mask, 4),
            ace(PosixTag::Other, 7),
        ]);
        let list = List::Posix(&acl);
        let as_is = |uid, gid, rwx| may(uid, gid, 0o100_647, list, rwx).is_ok();
        assert!(as_is(5, 1, 4) && !as_is(5, 1, 2), "the mask bounds a user");
        assert!(as_is(1, 100, 4) && !as_is(1, 100, 6));
        assert!(!as_is(1, 1, 2), "the mask bounds a group that one is in besides");
        let stranger = Cred::user(1, 1, []);
        assert_eq!(check(&stranger, &attrs(0o100_647, FileFlags(0)), list, Perms::from_rwx(7)), Ok(()));
    }

    fn ace(kind: AceType, who: Who, mask: u32) -> Ace {
        Ace { kind, flags: 0, mask, who, object_types: None }
    }

    #[test]
    fn the_first_entry_that_speaks_decides() {
        let acl = Acl {
            aces: vec![
                ace(AceType::Deny, Who::User(Fuid(5)), Perms::WRITE_DATA.0),
                ace(AceType::Allow, Who::NamedGroup(Fuid(7)), Perms::WRITE_DATA.0 | Perms::READ_DATA.0),
                ace(AceType::Audit, Who::Everyone, Perms::EXECUTE.0),
            ],
            is_trivial: false,
        };
        let list = List::Nfs4(&acl);
        assert_eq!(may(6, 1, 0o100_000, list, 6), Ok(()));
        assert_eq!(may(5, 1, 0o100_777, list, 6), Err(Refusal::Denied));
        assert_eq!(may(5, 1, 0o100_777, list, 4), Ok(()));
        assert_eq!(may(6, 1, 0o100_777, list, 1), Err(Refusal::Denied));
        assert_eq!(may(0, 0, 0o100_777, list, 7), Ok(()));
    }

    #[test]
    fn removal_asks_file_then_directory_then_the_sticky_bit() {
        let (dir, open, sticky) = (0o040_755, 0o040_777, 0o041_777);
        let plain = attrs(0o100_644, FileFlags(0));
        let remove = |uid, dir_mode, file: &Attrs, list| {
            let mut dir = attrs(dir_mode, FileFlags(0));
            dir.owner = Fuid(2000);
            let dir = Guarded { attrs: &dir, list: List::Mode };
            check_delete(&cred(uid, 1), dir, Guarded { attrs: file, list })
        };
        assert_eq!(remove(1000, dir, &plain, List::Mode), Err(Refusal::Denied));
        assert_eq!(remove(1, open, &plain, List::Mode), Ok(()));
        assert_eq!(remove(1, sticky, &plain, List::Mode), Err(Refusal::NotPermitted));
        assert_eq!(remove(1000, sticky, &plain, List::Mode), Ok(()));
        assert_eq!(remove(2000, sticky, &plain, List::Mode), Ok(()));
        let gives = Acl { aces: vec![ace(AceType::Allow, Who::User(Fuid(1)), Perms::DELETE.0)], is_trivial: false };
        assert_eq!(remove(1, dir, &plain, List::Nfs4(&gives)), Ok(()));
        let forbids = Acl { aces: vec![ace(AceType::Deny, Who::Everyone, Perms::DELETE.0)], is_trivial: false };
        assert_eq!(remove(1, open, &plain, List::Nfs4(&forbids)), Err(Refusal::Denied));
        assert_eq!(remove(0, dir, &attrs(0o100_644, FileFlags::IMMUTABLE), List::Mode), Err(Refusal::NotPermitted));
        // inherit-only entries decide nothing, and a caller who cannot look up a file cannot remove it
        let left = Acl { aces: vec![Ace { flags: 0x9, ..gives.aces[0] }], is_trivial: false };
        assert_eq!(remove(1, dir, &attrs(0o040_755, FileFlags(0)), List::Nfs4(&left)), Err(Refusal::Denied));
        assert_eq!(remove(1, 0o040_754, &plain, List::Nfs4(&gives)), Err(Refusal::Denied));
    }

    #[test]
    fn of_writing_and_removing_one_is_enough_unless_one_is_denied() {
        let (file, mut dir) = (attrs(0o100_644, FileFlags(0)), attrs(0o040_700, FileFlags(0)));
        dir.owner = Fuid(2000);
        let remove = |uid, dir: &Attrs, entries: &[(AceType, Perms)]| {
            let aces = entries.iter().map(|(kind, mask)| ace(*kind, Who::Everyone, mask.0)).collect();
            let acl = Acl { aces, is_trivial: false };
            let dir = Guarded { attrs: dir, list: List::Nfs4(&acl) };
            check_delete(&cred(uid, 1), dir, Guarded { attrs: &file, list: List::Mode })
        };
        let (allow, deny) = (AceType::Allow, AceType::Deny);
        let pass = (allow, Perms::EXECUTE);
        assert_eq!(remove(1, &dir, &[pass, (allow, Perms::WRITE_DATA)]), Ok(()));
        assert_eq!(remove(1, &dir, &[pass, (allow, Perms::DELETE_CHILD)]), Ok(()));
        assert_eq!(remove(1, &dir, &[pass]), Err(Refusal::Denied));
        assert_eq!(remove(1, &dir, &[(allow, Perms::WRITE_DATA)]), Err(Refusal::Denied));
        let half = [pass, (deny, Perms::DELETE_CHILD), (allow, Perms::WRITE_DATA)];
        assert_eq!(remove(1, &dir, &half), Err(Refusal::Denied));
        assert_eq!(remove(0, &dir, &half), Ok(()));
        dir.mode |= 0o1000;
        assert_eq!(remove(1, &dir, &[pass, (allow, Perms::WRITE_DATA)]), Err(Refusal::NotPermitted));
    }
}
