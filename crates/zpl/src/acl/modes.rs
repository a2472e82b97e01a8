//! Changes of NFSv4 ACLs: inheritance by a new file, chmod, and the mode that follows from an ACL (OpenZFS: `zfs_acl_ids_create`,
//! `zfs_acl_inherit`, `zfs_acl_chmod`, `zfs_mode_compute`, `zfs_acl_chown_setattr`, `zfs_aclset_common`).
//!
//! Every file has an ACL; one that is equivalent to the mode is *trivial*, and flagged so. The flags of the ACL are stored among
//! those of the file ([`ACL_WIDE`]).

use base::ObjectId;

use crate::{Ace, AceType, Acl, Error, FileFlags, Fuid, Kind, Who};

use crate::live::Settings;

/// Values of the properties `aclmode` and `aclinherit` (OpenZFS: `ZFS_ACL_*`).
pub(crate) mod rule {
    pub(crate) const DISCARD: u64 = 0;
    pub(crate) const NOALLOW: u64 = 1;
    pub(crate) const GROUPMASK: u64 = 2;
    pub(crate) const PASSTHROUGH: u64 = 3;
    pub(crate) const RESTRICTED: u64 = 4;
    pub(crate) const PASSTHROUGH_X: u64 = 5;
}

/// Inheritance flags of an entry.
const FILE_INHERIT: u16 = 0x1;
const DIRECTORY_INHERIT: u16 = 0x2;
const NO_PROPAGATE: u16 = 0x4;
const INHERIT_ONLY: u16 = 0x8;
const INHERITED: u16 = 0x80;
const ALL_INHERIT: u16 = FILE_INHERIT | DIRECTORY_INHERIT | NO_PROPAGATE | INHERIT_ONLY | INHERITED;
const INHERITABLE: u16 = FILE_INHERIT | DIRECTORY_INHERIT;

const OWNER: u16 = 0x1000;
const GROUP: u16 = 0x2040;
const EVERYONE: u16 = 0x4000;
const NAMED_GROUP: u16 = 0x40;
/// The flags that determine the subject of an entry.
const ABOUT_WHOM: u16 = OWNER | GROUP | EVERYONE | NAMED_GROUP;
/// The last type that a file server can set, the alarm with a condition for objects (OpenZFS: `MAX_ACE_TYPE`).
const TYPE_MAX: u16 = 16;

const READ_DATA: u32 = 0x1;
const WRITE_DATA: u32 = 0x2;
const APPEND_DATA: u32 = 0x4;
const EXECUTE: u32 = 0x20;
const DELETE_CHILD: u32 = 0x40;
const DELETE: u32 = 0x1_0000;
/// Read attributes, named attributes and list; synchronise.
const ANYONES: u32 = 0x8 | 0x80 | 0x2_0000 | 0x10_0000;
/// Write attributes, named attributes, list and owner.
const OWNERS: u32 = 0x10 | 0x100 | 0x4_0000 | 0x8_0000;
/// The permissions that `aclinherit=restricted` removes from entries (OpenZFS: `RESTRICTED_CLEAR`).
const WRITE_ACL_AND_OWNER: u32 = 0x4_0000 | 0x8_0000;

/// Flags of an ACL that a caller may set (OpenZFS: `V4_ACL_WIDE_FLAGS`).
pub(crate) const V4_WIDE: u64 = FileFlags::ACL_AUTO_INHERIT.0 | FileFlags::ACL_DEFAULTED.0 | FileFlags::ACL_PROTECTED.0;
/// All flags of a file that describe its ACL (OpenZFS: `ZFS_ACL_WIDE_FLAGS`), including the one that nobody is denied execution.
pub(crate) const ACL_WIDE: u64 = V4_WIDE
    | FileFlags::ACL_TRIVIAL.0
    | FileFlags::INHERIT_ACE.0
    | FileFlags::ACL_OBJ_ACE.0
    | FileFlags::NO_EXECS_DENIED.0;

/// A new ACL for a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct NewAcl {
    /// The mode, including the file type; the ACL may change it.
    pub(crate) mode: u32,
    /// The flags of [`ACL_WIDE`] that the file has.
    pub(crate) flags: u64,
    /// The entries.
    pub(crate) aces: Vec<Ace>,
}

impl NewAcl {
    /// Returns the entries as stored in [`dmu::sa::Attr::DaclAces`].
    pub(crate) fn bytes(&self) -> Vec<u8> {
        encode(&self.aces)
    }
}

/// Owner and group of a file, which named entries may refer to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owners {
    pub(crate) uid: Fuid,
    pub(crate) gid: Fuid,
}

/// Returns the ACL of a new file of `kind` with `mode`, in a directory whose ACL is `parent` if it has entries to inherit
/// (OpenZFS: `zfs_acl_ids_create`).
pub(crate) fn of_new_file(settings: &Settings, parent: Option<&Acl>, kind: Kind, mode: u32, owners: Owners) -> NewAcl {
    let mut new = NewAcl { mode, flags: 0, aces: Vec::new() };
    let mut needs_mode = true;
    match parent {
        Some(parent) => needs_mode = inherit(settings, parent, kind, &mut new),
        None => new.flags |= FileFlags::ACL_TRIVIAL.0,
    }
    if needs_mode {
        if kind == Kind::Directory {
            new.flags |= FileFlags::ACL_AUTO_INHERIT.0;
        }
        let passes = matches!(settings.aclinherit, rule::PASSTHROUGH | rule::PASSTHROUGH_X);
        let trim = settings.aclmode == rule::GROUPMASK && !passes;
        put_mode(&mut new, kind == Kind::Directory, false, trim);
    }
    let computed = mode_of(new.mode, &new.aces, owners, &mut new.flags);
    if parent.is_some() {
        new.mode = computed;
        if is_trivial(&new.aces) {
            new.flags |= FileFlags::ACL_TRIVIAL.0;
        }
    }
    new
}

/// Returns the ACL of a file whose mode becomes `mode` (OpenZFS: `zfs_acl_chmod_setattr`).
pub(crate) fn of_chmod(settings: &Settings, old: &Acl, flags: u64, kind: Kind, mode: u32, owners: Owners) -> NewAcl {
    let aces = if settings.aclmode == rule::DISCARD { Vec::new() } else { old.aces.clone() };
    let mut new = NewAcl { mode, flags: flags & V4_WIDE, aces };
    put_mode(&mut new, kind == Kind::Directory, true, settings.aclmode == rule::GROUPMASK);
    finish(&mut new, owners);
    new
}

/// Handles a change of owners: named entries may now refer to the new owners, which only affects a flag (OpenZFS:
/// `zfs_acl_chown_setattr`). Returns the mode and the flags.
pub(crate) fn of_chown(old: &Acl, flags: u64, mode: u32, owners: Owners) -> (u32, u64) {
    let mut flags = flags;
    let mode = mode_of(mode, &old.aces, owners, &mut flags);
    (mode, flags)
}

/// Checks an ACL set by a caller; the mode follows from it (OpenZFS: `zfs_setacl`, `zfs_vsec_2_aclp`).
///
/// # Errors
/// [`Error::BadAcl`] for invalid entries.
pub(crate) fn of_list(aces: Vec<Ace>, flags: u64, kind: Kind, mode: u32, owners: Owners) -> Result<NewAcl, Error> {
    let bad = |why| Error::BadAcl { object: ObjectId::NONE, why };
    if aces.is_empty() || aces.len() > 1024 {
        return Err(bad("no entries, or too many"));
    }
    let mut new = NewAcl { mode, flags: flags & V4_WIDE, aces };
    for ace in &new.aces {
        if !is_valid(ace) {
            return Err(bad("an entry of an unknown type"));
        }
        if ace.flags & (INHERIT_ONLY | NO_PROPAGATE) != 0 && ace.flags & INHERITABLE == 0 {
            return Err(bad("an entry with inheritance flags that neither files nor directories inherit"));
        }
        if kind == Kind::Directory && ace.flags & INHERITABLE != 0 {
            new.flags |= FileFlags::INHERIT_ACE.0;
        }
        new.flags |= object_flag(ace);
    }
    finish(&mut new, owners);
    Ok(new)
}

/// Sets the mode and flags that follow from the entries (OpenZFS: `zfs_aclset_common`).
fn finish(new: &mut NewAcl, owners: Owners) {
    new.mode = mode_of(new.mode, &new.aces, owners, &mut new.flags);
    if is_trivial(&new.aces) {
        new.flags |= FileFlags::ACL_TRIVIAL.0;
    }
}

fn object_flag(ace: &Ace) -> u64 {
    if matches!(ace.kind, AceType::Other(5..=8)) { FileFlags::ACL_OBJ_ACE.0 } else { 0 }
}

/// True if the type of an entry fits its subject (OpenZFS: `zfs_acl_valid_ace_type`).
pub(crate) fn is_valid(ace: &Ace) -> bool {
    match ace.kind {
        AceType::Allow | AceType::Deny | AceType::Audit | AceType::Alarm => {
            matches!(ace.flags & ABOUT_WHOM, 0 | NAMED_GROUP | OWNER | GROUP | EVERYONE)
        }
        AceType::Other(kind) => kind <= TYPE_MAX,
    }
}

/// Inherits entries from the ACL of the directory. Returns true if entries for the mode must be added as well (OpenZFS:
/// `zfs_acl_inherit`).
fn inherit(settings: &Settings, parent: &Acl, kind: Kind, new: &mut NewAcl) -> bool {
    let (how, is_dir) = (settings.aclinherit, kind == Kind::Directory);
    let mut needs_mode = true;
    if how == rule::DISCARD || kind == Kind::Symlink {
        return true;
    }
    for ace in parent.aces.iter().filter(|ace| is_valid(ace) && is_left(ace, is_dir)) {
        let allows = ace.kind == AceType::Allow;
        if how == rule::NOALLOW && allows {
            continue;
        }
        let passes = matches!(how, rule::PASSTHROUGH | rule::PASSTHROUGH_X);
        let of_mode = matches!(ace.who, Who::Owner | Who::Group | Who::Everyone);
        let reaches = kind == Kind::File || (is_dir && ace.flags & DIRECTORY_INHERIT != 0);
        needs_mode &= !(passes && of_mode && reaches);
        let mut mask = ace.mask;
        if how == rule::PASSTHROUGH_X && allows && !is_dir && new.mode & 0o111 == 0 {
            mask &= !EXECUTE;
        }
        if how == rule::RESTRICTED && allows {
            mask &= !WRITE_ACL_AND_OWNER;
        }
        let flags = if !is_dir || ace.flags & NO_PROPAGATE != 0 {
            ace.flags & !ALL_INHERIT
        } else {
            new.flags |= FileFlags::INHERIT_ACE.0;
            let only = ace.flags & INHERITABLE == FILE_INHERIT;
            ace.flags & !INHERIT_ONLY | if only { INHERIT_ONLY } else { 0 }
        };
        new.aces.push(Ace { mask, flags: flags | INHERITED, ..*ace });
    }
    needs_mode && (settings.aclmode != rule::RESTRICTED || new.aces.is_empty())
}

/// True if a new directory, or another new file, inherits this entry (OpenZFS: `zfs_ace_can_use`).
fn is_left(ace: &Ace, is_dir: bool) -> bool {
    if is_dir && ace.flags & DIRECTORY_INHERIT != 0 {
        return true;
    }
    ace.flags & FILE_INHERIT != 0 && !(is_dir && ace.flags & NO_PROPAGATE != 0)
}

/// Adds entries for the mode around the existing ones. With `split` the existing entries for owner, group and everyone are
/// removed, except for their inheritable part; with `trim` no named entry grants more than the group has (OpenZFS:
/// `zfs_acl_chmod`).
fn put_mode(new: &mut NewAcl, is_dir: bool, split: bool, trim: bool) {
    let masks = Masks::of(new.mode, is_dir);
    let mut aces = masks.front();
    for old in &new.aces {
        let mut ace = *old;
        if split && matches!(ace.who, Who::Owner | Who::Group | Who::Everyone) {
            if !is_dir || ace.flags & INHERITABLE == 0 {
                continue;
            }
            ace.flags |= INHERIT_ONLY;
        }
        if is_dir && ace.flags & INHERITABLE != 0 {
            new.flags |= FileFlags::INHERIT_ACE.0;
        }
        new.flags |= object_flag(&ace);
        if ace.kind == AceType::Allow && ace.flags & INHERIT_ONLY == 0 && trim {
            ace.mask &= masks.group;
        }
        aces.push(ace);
    }
    aces.extend(masks.back());
    new.aces = aces;
}

/// The access masks that a mode grants and denies (OpenZFS: `acl_trivial_access_masks`).
struct Masks {
    owner_first: u32,
    owner_denied: u32,
    group_denied: u32,
    owner: u32,
    group: u32,
    everyone: u32,
}

impl Masks {
    fn of(mode: u32, is_dir: bool) -> Masks {
        let write = WRITE_DATA | APPEND_DATA | if is_dir { DELETE_CHILD } else { 0 };
        let mask = |bits: u32| {
            let of = |bit, mask| if bits & bit != 0 { mask } else { 0 };
            of(4, READ_DATA) | of(2, write) | of(1, EXECUTE)
        };
        let (user, group, other) = ((mode >> 6) & 7, (mode >> 3) & 7, mode & 7);
        Masks {
            // permissions of owner and others that the group lacks come before the group is denied them
            owner_first: mask(user & !group & other),
            owner_denied: mask(!user & (group | other)),
            group_denied: mask(!group & other),
            owner: mask(user) | ANYONES | OWNERS,
            group: mask(group) | ANYONES,
            everyone: mask(other) | ANYONES,
        }
    }

    fn front(&self) -> Vec<Ace> {
        let all = [
            plain(AceType::Allow, Who::Owner, self.owner_first),
            plain(AceType::Deny, Who::Owner, self.owner_denied),
            plain(AceType::Deny, Who::Group, self.group_denied),
        ];
        all.into_iter().filter(|ace| ace.mask != 0).collect()
    }

    fn back(&self) -> [Ace; 3] {
        [
            plain(AceType::Allow, Who::Owner, self.owner),
            plain(AceType::Allow, Who::Group, self.group),
            plain(AceType::Allow, Who::Everyone, self.everyone),
        ]
    }
}

fn plain(kind: AceType, who: Who, mask: u32) -> Ace {
    let flags = match who {
        Who::Owner => OWNER,
        Who::Group => GROUP,
        Who::Everyone => EVERYONE,
        Who::User(_) => 0,
        Who::NamedGroup(_) => NAMED_GROUP,
    };
    Ace { kind, flags, mask, who, object_types: None }
}

/// True if an ACL is equivalent to a mode (OpenZFS: `ace_trivial_common`).
pub(crate) fn is_trivial(aces: &[Ace]) -> bool {
    aces.iter().all(|ace| {
        matches!(ace.who, Who::Owner | Who::Group | Who::Everyone)
            && ace.flags & (ALL_INHERIT & !INHERITED) == 0
            && !(ace.kind == AceType::Deny && ace.mask & (0x80 | 0x2_0000) != 0)
            && ace.mask & DELETE == 0
            && !(ace.mask & DELETE_CHILD != 0 && ace.mask & WRITE_DATA == 0)
            && !(ace.kind == AceType::Allow && ace.who != Who::Owner && ace.mask & OWNERS != 0)
    })
}

/// Returns the permission bits that an ACL grants: for each bit the first entry that mentions it decides. Sets or clears the flag
/// that nobody is denied execution (OpenZFS: `zfs_mode_compute`).
fn mode_of(mode: u32, aces: &[Ace], owners: Owners, flags: &mut u64) -> u32 {
    let (mut given, mut seen, mut exec_denied) = (mode & !0o777, 0, false);
    for ace in aces.iter().filter(|ace| is_valid(ace) && ace.flags & INHERIT_ONLY == 0) {
        let bits = [(READ_DATA, 4), (WRITE_DATA, 2), (EXECUTE, 1)];
        let rwx = bits.iter().filter(|(mask, _)| ace.mask & mask != 0).fold(0, |all, (_, bit)| all | bit);
        let spoken = match ace.who {
            Who::Owner => rwx << 6,
            Who::User(id) if id == owners.uid => rwx << 6,
            Who::Group => rwx << 3,
            Who::NamedGroup(id) if id == owners.gid => rwx << 3,
            Who::Everyone => rwx << 6 | rwx << 3 | rwx,
            Who::User(_) | Who::NamedGroup(_) => {
                exec_denied |= rwx & 1 != 0 && ace.kind == AceType::Deny;
                0
            }
        };
        if ace.kind == AceType::Allow {
            given |= spoken & !seen;
        }
        seen |= spoken;
    }
    if exec_denied || seen & given & 0o111 != 0o111 {
        *flags &= !FileFlags::NO_EXECS_DENIED.0;
    } else {
        *flags |= FileFlags::NO_EXECS_DENIED.0;
    }
    given
}

/// Returns the ACL of a new file of this mode, as stored in its attribute.
#[must_use]
pub fn list_of_mode(kind: Kind, mode: u32) -> Vec<u8> {
    encode(&aces_of_mode(kind, mode))
}

/// Returns the entries of an ACL that is equivalent to a mode.
pub(crate) fn aces_of_mode(kind: Kind, mode: u32) -> Vec<Ace> {
    let mut new = NewAcl { mode, flags: 0, aces: Vec::new() };
    put_mode(&mut new, kind == Kind::Directory, false, false);
    new.aces
}

/// Encodes the entries in the newer form, in this machine's byte order: 8 bytes for owner, group and everyone, 16 with an id, 48
/// for object entries (OpenZFS: `zfs_ace_fuid_size`).
pub(crate) fn encode(aces: &[Ace]) -> Vec<u8> {
    let mut out = Vec::with_capacity(aces.len() * 16);
    for ace in aces {
        let kind = number_of(ace.kind);
        out.extend_from_slice(&kind.to_ne_bytes());
        out.extend_from_slice(&ace.flags.to_ne_bytes());
        out.extend_from_slice(&ace.mask.to_ne_bytes());
        let id = match ace.who {
            Who::User(id) | Who::NamedGroup(id) => id.0,
            // such an entry has an id field without an id (OpenZFS: -1)
            Who::Owner | Who::Group | Who::Everyone if kind > 1 => u64::MAX,
            Who::Owner | Who::Group | Who::Everyone => continue,
        };
        out.extend_from_slice(&id.to_ne_bytes());
        if matches!(kind, 5..=8) {
            let [own, inherited] = ace.object_types.unwrap_or_default();
            out.extend_from_slice(&own);
            out.extend_from_slice(&inherited);
        }
    }
    out
}

/// Encodes the entries in the form of callers and of the intent log: who, mask, flags, type, 12 bytes; two more GUIDs in object
/// entries (OpenZFS: `ace_t`, `ace_object_t`).
pub(crate) fn encode_given(aces: &[Ace]) -> Vec<u8> {
    let mut out = Vec::with_capacity(aces.len() * 12);
    for ace in aces {
        let kind = number_of(ace.kind);
        let id = match ace.who {
            Who::User(id) | Who::NamedGroup(id) => id.posix_id(),
            Who::Owner | Who::Group | Who::Everyone => u32::MAX,
        };
        out.extend_from_slice(&id.to_ne_bytes());
        out.extend_from_slice(&ace.mask.to_ne_bytes());
        out.extend_from_slice(&ace.flags.to_ne_bytes());
        out.extend_from_slice(&kind.to_ne_bytes());
        if matches!(kind, 5..=8) {
            out.extend_from_slice(ace.object_types.unwrap_or_default().as_flattened());
        }
    }
    out
}

const fn number_of(kind: AceType) -> u16 {
    match kind {
        AceType::Allow => 0,
        AceType::Deny => 1,
        AceType::Audit => 2,
        AceType::Alarm => 3,
        AceType::Other(n) => n,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use base::Endian;

    use super::*;

    const ME: Owners = Owners { uid: Fuid(1000), gid: Fuid(100) };

    fn settings(aclmode: u64, aclinherit: u64) -> Settings {
        Settings {
            recordsize: 128 << 10,
            dnode_slots: 1,
            longname: false,
            acltype: 2,
            aclmode,
            aclinherit,
            xattr: 2,
            atime: true,
            relatime: true,
            readonly: false,
            sync: 0,
            logbias: 0,
            logs_sa_xattrs: true,
        }
    }

    fn by_name(id: u64, mask: u32, flags: u16) -> Ace {
        Ace { kind: AceType::Allow, flags, mask, who: Who::User(Fuid(id)), object_types: None }
    }

    #[test]
    fn a_new_file_has_the_list_of_its_mode() {
        for mode in 0..0o1000 {
            let new = of_new_file(&settings(rule::DISCARD, rule::RESTRICTED), None, Kind::File, 0o100_000 | mode, ME);
            let (count, bytes) = crate::create::trivial_acl(mode);
            assert_eq!((new.aces.len() as u64, new.bytes()), (count, bytes), "{mode:o}");
            assert!(is_trivial(&new.aces));
            let mut flags = 0;
            assert_eq!(mode_of(0o100_000, &new.aces, ME, &mut flags), 0o100_000 | mode);
            assert_eq!(flags, crate::create::acl_flags(mode), "{mode:o}");
        }
    }

    #[test]
    fn entries_are_written_as_they_are_read() {
        let object = Ace { object_types: Some([[1; 16], [2; 16]]), kind: AceType::Other(5), ..by_name(7, 1, 0) };
        let audit = Ace { kind: AceType::Audit, ..plain(AceType::Allow, Who::Everyone, 3) };
        let aces = vec![plain(AceType::Deny, Who::Group, 2), by_name(5, 6, 0), object, audit];
        let bytes = encode(&aces);
        assert_eq!(bytes.len(), 8 + 16 + 48 + 16);
        assert_eq!(Acl::decode(&bytes, 4, Endian::NATIVE).unwrap(), aces);
        let given = encode_given(&aces);
        assert_eq!(given.len(), 12 + 12 + 44 + 12);
        assert_eq!(Acl::decode_given(&given, 4, Endian::NATIVE).unwrap(), aces);
        assert!(Acl::decode_given(&given[..79], 4, Endian::NATIVE).is_err());
    }

    #[test]
    fn entries_are_inherited_as_aclinherit_says() {
        let all = 0x1f_01ff;
        let parent = Acl {
            aces: vec![
                by_name(5, all, FILE_INHERIT | DIRECTORY_INHERIT),
                by_name(6, all, FILE_INHERIT),
                by_name(7, all, DIRECTORY_INHERIT | NO_PROPAGATE),
                by_name(8, all, 0),
                Ace { flags: EVERYONE | FILE_INHERIT, ..plain(AceType::Allow, Who::Everyone, READ_DATA) },
            ],
            is_trivial: false,
        };
        let new = |how, kind, mode| of_new_file(&settings(rule::DISCARD, how), Some(&parent), kind, mode, ME);
        let named = |new: &NewAcl| -> Vec<(Who, u32, u16)> {
            let named = new.aces.iter().filter(|ace| matches!(ace.who, Who::User(_)));
            named.map(|ace| (ace.who, ace.mask, ace.flags)).collect()
        };
        let file = new(rule::RESTRICTED, Kind::File, 0o100_644);
        let less = all & !WRITE_ACL_AND_OWNER;
        assert_eq!(named(&file), [(Who::User(Fuid(5)), less, INHERITED), (Who::User(Fuid(6)), less, INHERITED)]);
        assert_eq!((file.mode, file.flags & FileFlags::ACL_TRIVIAL.0), (0o100_644, 0));
        let dir = new(rule::RESTRICTED, Kind::Directory, 0o040_755);
        assert_eq!(
            named(&dir),
            [
                (Who::User(Fuid(5)), less, INHERITED | FILE_INHERIT | DIRECTORY_INHERIT),
                (Who::User(Fuid(6)), less, INHERITED | FILE_INHERIT | INHERIT_ONLY),
                (Who::User(Fuid(7)), less, INHERITED),
            ]
        );
        assert_ne!(dir.flags & FileFlags::INHERIT_ACE.0, 0);
        // with passthrough an entry for everyone determines the mode
        let through = new(rule::PASSTHROUGH, Kind::File, 0o100_644);
        assert_eq!(through.mode, 0o100_444);
        let none = new(rule::DISCARD, Kind::File, 0o100_600);
        assert_eq!((none.mode, none.aces.len()), (0o100_600, 3));
        assert_ne!(none.flags & FileFlags::ACL_TRIVIAL.0, 0);
        let noallow = new(rule::NOALLOW, Kind::File, 0o100_600);
        assert!(named(&noallow).is_empty());
        let x = new(rule::PASSTHROUGH_X, Kind::File, 0o100_644);
        assert!(named(&x).iter().all(|(_, mask, _)| mask & EXECUTE == 0));
    }

    /// Audit and alarm entries are kept in ACLs and inherited unchanged; they grant nothing, but later entries that mention the
    /// same permissions do not count for the mode.
    #[test]
    fn entries_that_log_and_alarm_are_kept_and_inherited() {
        const SUCCESSFUL: u16 = 0x10;
        const FAILED: u16 = 0x20;
        let all = 0x1f_01ff;
        let audit = Ace { kind: AceType::Audit, ..by_name(5, all, SUCCESSFUL | FILE_INHERIT | DIRECTORY_INHERIT) };
        let alarm = Ace { kind: AceType::Alarm, ..by_name(6, all, FAILED | FILE_INHERIT) };
        let mode = of_new_file(&settings(rule::DISCARD, rule::RESTRICTED), None, Kind::Directory, 0o040_755, ME);
        let given: Vec<Ace> = [audit, alarm].into_iter().chain(mode.aces).collect();
        let set = of_list(given.clone(), 0, Kind::Directory, 0o040_000, ME).unwrap();
        assert_eq!((&set.aces, set.mode), (&given, 0o040_755));
        assert_eq!(set.flags & (FileFlags::INHERIT_ACE.0 | FileFlags::ACL_TRIVIAL.0), FileFlags::INHERIT_ACE.0);
        let parent = Acl { aces: set.aces, is_trivial: false };
        assert_eq!(Acl::decode(&encode(&parent.aces), parent.aces.len() as u64, Endian::NATIVE).unwrap(), parent.aces);
        // rules that remove permissions from allow entries do not affect these
        for how in [rule::NOALLOW, rule::RESTRICTED, rule::PASSTHROUGH_X] {
            let new = |kind, mode| of_new_file(&settings(rule::GROUPMASK, how), Some(&parent), kind, mode, ME);
            let (file, dir) = (new(Kind::File, 0o100_640), new(Kind::Directory, 0o040_750));
            let some = |new: &NewAcl| -> Vec<Ace> {
                new.aces.iter().filter(|ace| matches!(ace.kind, AceType::Audit | AceType::Alarm)).copied().collect()
            };
            let stays = |ace: Ace, flags| Ace { flags: flags | INHERITED, ..ace };
            assert_eq!(some(&file), [stays(audit, SUCCESSFUL), stays(alarm, FAILED)], "{how}");
            assert_eq!(some(&dir), [stays(audit, audit.flags), stays(alarm, alarm.flags | INHERIT_ONLY)], "{how}");
            assert_eq!((file.mode, dir.mode), (0o100_640, 0o040_750), "{how}");
        }
        let everyone = Ace { kind: AceType::Audit, ..plain(AceType::Allow, Who::Everyone, READ_DATA) };
        let hides = vec![everyone, plain(AceType::Allow, Who::Everyone, READ_DATA | WRITE_DATA)];
        assert_eq!(of_list(hides, 0, Kind::File, 0o100_000, ME).unwrap().mode, 0o100_222);
        let chmod = of_chmod(&settings(rule::GROUPMASK, rule::RESTRICTED), &parent, 0, Kind::Directory, 0o040_700, ME);
        assert_eq!(chmod.aces.iter().filter(|ace| [audit, alarm].contains(ace)).count(), 2);
    }

    #[test]
    fn chmod_keeps_drops_or_trims_entries_as_aclmode_says() {
        let old = of_new_file(&settings(rule::PASSTHROUGH, rule::RESTRICTED), None, Kind::File, 0o100_644, ME);
        let mut aces = old.aces.clone();
        aces.insert(0, by_name(5, READ_DATA | WRITE_DATA, 0));
        let acl = Acl { aces, is_trivial: false };
        let chmod = |how| of_chmod(&settings(how, rule::RESTRICTED), &acl, 0, Kind::File, 0o100_640, ME);
        let named = |new: &NewAcl| new.aces.iter().find(|ace| matches!(ace.who, Who::User(_))).map(|ace| ace.mask);
        assert_eq!(named(&chmod(rule::DISCARD)), None);
        assert_eq!(named(&chmod(rule::PASSTHROUGH)), Some(READ_DATA | WRITE_DATA));
        assert_eq!(named(&chmod(rule::GROUPMASK)), Some(READ_DATA));
        for how in [rule::DISCARD, rule::PASSTHROUGH, rule::GROUPMASK] {
            let new = chmod(how);
            assert_eq!(new.mode, 0o100_640);
            assert_eq!(new.flags & FileFlags::ACL_TRIVIAL.0 != 0, how == rule::DISCARD);
        }
    }

    #[test]
    fn a_list_that_is_set_makes_the_mode() {
        let aces = vec![
            plain(AceType::Allow, Who::Owner, READ_DATA | WRITE_DATA | EXECUTE),
            Ace { kind: AceType::Deny, ..by_name(5, EXECUTE, 0) },
            plain(AceType::Allow, Who::Everyone, READ_DATA | EXECUTE),
        ];
        let new = of_list(aces, 0, Kind::File, 0o104_000, ME).unwrap();
        assert_eq!((new.mode, new.flags), (0o104_755, 0));
        let of = |kind, flags| of_list(vec![Ace { kind, ..by_name(5, 1, flags) }], 0, Kind::File, 0, ME).is_ok();
        for kind in 4..=16 {
            assert!(of(AceType::Other(kind), 0), "{kind}");
        }
        assert!(!of(AceType::Other(17), 0) && !of(AceType::Other(u16::MAX), 0));
        for kind in [AceType::Allow, AceType::Deny, AceType::Audit, AceType::Alarm] {
            // the group without its flag, and two subjects at once
            assert!(of(kind, 0) && !of(kind, 0x2000) && !of(kind, OWNER | EVERYONE), "{kind:?}");
        }
        let odd = Ace { flags: INHERIT_ONLY, ..by_name(5, 1, 0) };
        assert!(of_list(vec![odd], 0, Kind::File, 0, ME).is_err());
        assert!(of_list(Vec::new(), 0, Kind::File, 0, ME).is_err());
    }
}
