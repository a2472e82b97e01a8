//! Changes of POSIX ACLs, as in Linux's `posix_acl.c` for every file system: the ACL and the mode are kept consistent.

use base::ObjectId;

use crate::{Error, PosixAcl, PosixTag};

/// The version with which the attribute begins.
const VERSION: u32 = 2;
/// The id of entries without an id.
const NO_ID: u32 = u32::MAX;

fn bad(why: &'static str) -> Error {
    Error::BadAcl { object: ObjectId::NONE, why }
}

impl PosixAcl {
    /// Returns the value of the attribute.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = VERSION.to_le_bytes().to_vec();
        for ace in &self.0 {
            let (tag, id) = match ace.tag {
                PosixTag::UserObj => (0x01u16, NO_ID),
                PosixTag::User(id) => (0x02, id),
                PosixTag::GroupObj => (0x04, NO_ID),
                PosixTag::Group(id) => (0x08, id),
                PosixTag::Mask => (0x10, NO_ID),
                PosixTag::Other => (0x20, NO_ID),
            };
            out.extend_from_slice(&tag.to_le_bytes());
            out.extend_from_slice(&ace.perm.to_le_bytes());
            out.extend_from_slice(&id.to_le_bytes());
        }
        out
    }

    /// Checks that the ACL is valid: entries in order, no duplicates of entries that must be unique, a mask if there are named
    /// entries.
    ///
    /// # Errors
    /// [`Error::BadAcl`].
    pub fn validate(&self) -> Result<(), Error> {
        let rank = |tag: PosixTag| match tag {
            PosixTag::UserObj => 0,
            PosixTag::User(_) => 1,
            PosixTag::GroupObj => 2,
            PosixTag::Group(_) => 3,
            PosixTag::Mask => 4,
            PosixTag::Other => 5,
        };
        if self.0.iter().any(|ace| ace.perm > 7) {
            return Err(bad("an invalid permission"));
        }
        let repeats = |rank: u8| rank == 1 || rank == 3;
        let ranks: Vec<u8> = self.0.iter().map(|ace| rank(ace.tag)).collect();
        if !ranks.windows(2).all(|two| matches!(two, [a, b] if a < b || (a == b && repeats(*a)))) {
            return Err(bad("entries out of order, or twice"));
        }
        let has = |wanted: u8| ranks.contains(&wanted);
        if !(has(0) && has(2) && has(5)) {
            return Err(bad("no entry for the owner, the group or others"));
        }
        if (has(1) || has(3)) && !has(4) { Err(bad("named entries without a mask")) } else { Ok(()) }
    }

    /// Returns the permission bits of the ACL, and whether it is equivalent to them (Linux: `posix_acl_equiv_mode`).
    #[must_use]
    pub fn mode(&self) -> (u32, bool) {
        let (mut mode, mut mask, mut is_all) = (0, None, true);
        for ace in &self.0 {
            let perm = u32::from(ace.perm & 7);
            match ace.tag {
                PosixTag::UserObj => mode |= perm << 6,
                PosixTag::GroupObj => mode |= perm << 3,
                PosixTag::Other => mode |= perm,
                PosixTag::Mask => (mask, is_all) = (Some(perm), false),
                PosixTag::User(_) | PosixTag::Group(_) => is_all = false,
            }
        }
        (mask.map_or(mode, |mask| mode & !0o070 | mask << 3), is_all)
    }

    /// Returns whether it says what the group may do, or the mask: otherwise it is not changed by a chmod.
    #[must_use]
    pub fn has_group(&self) -> bool {
        self.0.iter().any(|ace| matches!(ace.tag, PosixTag::GroupObj | PosixTag::Mask))
    }

    /// Applies a chmod to the ACL, which [has](PosixAcl::has_group) a group or a mask (Linux: `__posix_acl_chmod_masq`).
    pub fn chmod(&mut self, mode: u32) {
        let masked = self.0.iter().any(|ace| ace.tag == PosixTag::Mask);
        for ace in &mut self.0 {
            match ace.tag {
                PosixTag::UserObj => ace.perm = (mode >> 6) as u16 & 7,
                PosixTag::Mask => ace.perm = (mode >> 3) as u16 & 7,
                PosixTag::GroupObj if !masked => ace.perm = (mode >> 3) as u16 & 7,
                PosixTag::Other => ace.perm = mode as u16 & 7,
                PosixTag::GroupObj | PosixTag::User(_) | PosixTag::Group(_) => {}
            }
        }
    }

    /// Applies the default ACL of a directory to a file created in it with `mode`: returns its mode, and its ACL if that is not
    /// equivalent (Linux: `posix_acl_create_masq`). The umask is ignored if there is a default ACL.
    #[must_use]
    pub fn for_new_file(&self, mode: u32) -> (u32, Option<PosixAcl>) {
        let mut acl = self.clone();
        let masked = acl.0.iter().any(|ace| ace.tag == PosixTag::Mask);
        let mut left = mode;
        for ace in &mut acl.0 {
            let shift = match ace.tag {
                PosixTag::UserObj => 6,
                PosixTag::Mask => 3,
                PosixTag::GroupObj if !masked => 3,
                PosixTag::Other => 0,
                PosixTag::GroupObj | PosixTag::User(_) | PosixTag::Group(_) => continue,
            };
            ace.perm &= (mode >> shift) as u16 & 7;
            left &= u32::from(ace.perm) << shift | !(7 << shift);
        }
        let (_, is_all) = acl.mode();
        (left, (!is_all).then_some(acl))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::PosixAce;

    fn list(entries: &[(PosixTag, u16)]) -> PosixAcl {
        PosixAcl(entries.iter().map(|(tag, perm)| PosixAce { tag: *tag, perm: *perm }).collect())
    }

    fn full() -> PosixAcl {
        list(&[
            (PosixTag::UserObj, 7),
            (PosixTag::User(5), 7),
            (PosixTag::GroupObj, 5),
            (PosixTag::Group(9), 4),
            (PosixTag::Mask, 6),
            (PosixTag::Other, 1),
        ])
    }

    #[test]
    fn a_list_is_written_as_it_is_read() {
        assert_eq!(PosixAcl::decode(&full().encode()).unwrap(), full());
        full().validate().unwrap();
        for drop in 0..6 {
            let mut less = full();
            less.0.remove(drop);
            // named entries may be missing, the others may not
            assert_eq!(less.validate().is_ok(), drop == 1 || drop == 3, "{drop}");
        }
        let mut twice = full();
        twice.0.insert(0, twice.0[0]);
        assert!(twice.validate().is_err());
        assert!(list(&[(PosixTag::UserObj, 8), (PosixTag::GroupObj, 0), (PosixTag::Other, 0)]).validate().is_err());
    }

    #[test]
    fn list_and_mode_go_together() {
        assert_eq!(full().mode(), (0o761, false));
        assert_eq!(
            list(&[(PosixTag::UserObj, 6), (PosixTag::GroupObj, 4), (PosixTag::Other, 0)]).mode(),
            (0o640, true)
        );
        let mut acl = full();
        acl.chmod(0o640);
        assert_eq!(acl.mode().0, 0o640);
        assert_eq!(acl.0[2].perm, 5, "the group's own entry stays behind the mask");
    }

    #[test]
    fn a_new_file_gets_what_list_and_mode_both_give() {
        let (mode, acl) = full().for_new_file(0o100_664);
        assert_eq!(mode, 0o100_660);
        assert_eq!(acl.unwrap().mode().0, 0o660);
        let small = list(&[(PosixTag::UserObj, 7), (PosixTag::GroupObj, 5), (PosixTag::Other, 0)]);
        assert_eq!(small.for_new_file(0o100_666), (0o100_640, None));
    }
}
