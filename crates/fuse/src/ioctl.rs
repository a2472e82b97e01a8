//! Requests about flags and projects (`lsattr`, `chattr`, `zfs project`).
//!
//! Linux has two calls with different bits: `FS_IOC_GETFLAGS` and `FS_IOC_FSGETXATTR`, which also has the project. OpenZFS has a third for the flags that file
//! servers use.

use base::{Endian, Errno, bytes};
use fuser::{INodeNo, Request};
use zpl::FileFlags;
use zpl::live::SetAttr;

use crate::served::{Answer, Served};

/// Linux's calls.
const FS_IOC_GETFLAGS: u32 = 0x8008_6601;
const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
const FS_IOC_GETVERSION: u32 = 0x8008_7601;
const FS_IOC_FSGETXATTR: u32 = 0x801c_581f;
const FS_IOC_FSSETXATTR: u32 = 0x401c_5820;
/// OpenZFS's.
const ZFS_IOC_GETDOSFLAGS: u32 = 0x8008_8301;
const ZFS_IOC_SETDOSFLAGS: u32 = 0x4008_8302;

/// Bytes of `struct fsxattr`, and the place of the project in it.
const FSXATTR: usize = 28;
const PROJECT_AT: usize = 12;

/// Flags and their bits: of `FS_IOC_GETFLAGS`, of `FS_IOC_FSGETXATTR`.
const BITS: [(FileFlags, u32, u32); 4] = [
    (FileFlags::IMMUTABLE, 0x10, 0x8),
    (FileFlags::APPENDONLY, 0x20, 0x10),
    (FileFlags::NODUMP, 0x40, 0x80),
    (FileFlags::PROJINHERIT, 0x2000_0000, 0x200),
];
/// The flags that file servers use (OpenZFS: `ZFS_DOS_FL_USER_VISIBLE`).
const DOS: u64 = FileFlags::IMMUTABLE.0
    | FileFlags::APPENDONLY.0
    | FileFlags::NODUMP.0
    | FileFlags::ARCHIVE.0
    | FileFlags::HIDDEN.0
    | FileFlags::NOUNLINK.0
    | FileFlags::OFFLINE.0
    | FileFlags::READONLY.0
    | FileFlags::SPARSE.0
    | FileFlags::SYSTEM.0
    | FileFlags::REPARSE.0;

/// Returns flags with those of [`BITS`] set as given.
fn changed(flags: FileFlags, given: u32, bit_of: impl Fn(&(FileFlags, u32, u32)) -> u32) -> Answer<FileFlags> {
    let known = BITS.iter().fold(0, |all, entry| all | bit_of(entry));
    if given & !known != 0 {
        return Err(Errno::ENOTSUP);
    }
    Ok(BITS.iter().fold(flags, |flags, entry| {
        let set = given & bit_of(entry) != 0;
        FileFlags(if set { flags.0 | entry.0.0 } else { flags.0 & !entry.0.0 })
    }))
}

impl Served {
    /// Answers a call with data.
    pub(crate) fn ioctl(&self, req: &Request, file: INodeNo, call: u32, data: &[u8], room: u32) -> Answer<Vec<u8>> {
        // flags are set together with those that stay as they are
        let is_set = [FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR, ZFS_IOC_SETDOSFLAGS].contains(&call);
        let _flags = is_set.then(|| self.flags.lock());
        let (pinned, id) = self.pin_file(file)?;
        let attrs = pinned.attrs(id).map_err(|error| error.errno())?;
        let word = |at| bytes::u32(data, at, Endian::NATIVE).ok_or(Errno::EINVAL);
        let set = |set: SetAttr| -> Answer<Vec<u8>> {
            pinned.setattr(&self.real_caller(req), id, &set).map_err(|error| error.errno())?;
            // the time of the change is another
            self.stale(id).tell();
            Ok(Vec::new())
        };
        let mut out = match call {
            FS_IOC_GETFLAGS => u64::from(attrs.flags.linux()).to_ne_bytes().to_vec(),
            FS_IOC_GETVERSION => (attrs.generation & u64::from(u32::MAX)).to_ne_bytes().to_vec(),
            ZFS_IOC_GETDOSFLAGS => (attrs.flags.0 & DOS).to_ne_bytes().to_vec(),
            FS_IOC_FSGETXATTR => {
                let words = [attrs.flags.linux_xflags(), 0, 0, attrs.projid.unwrap_or(0) as u32];
                let mut all: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
                all.resize(FSXATTR, 0);
                all
            }
            FS_IOC_SETFLAGS => {
                let flags = changed(attrs.flags, word(0)?, |entry| entry.1)?;
                return set(SetAttr { flags: Some(flags), ..SetAttr::default() });
            }
            FS_IOC_FSSETXATTR => {
                let flags = changed(attrs.flags, word(0)?, |entry| entry.2)?;
                let projid = u64::from(word(PROJECT_AT)?);
                let projid = (projid != attrs.projid.unwrap_or(0)).then_some(projid);
                let flags = (flags != attrs.flags).then_some(flags);
                return set(SetAttr { flags, projid, ..SetAttr::default() });
            }
            ZFS_IOC_SETDOSFLAGS => {
                let given = bytes::u64(data, 0, Endian::NATIVE).ok_or(Errno::EINVAL)?;
                if given & !DOS != 0 {
                    return Err(Errno::ENOTSUP);
                }
                let flags = FileFlags(attrs.flags.0 & !DOS | given);
                return set(SetAttr { flags: Some(flags), ..SetAttr::default() });
            }
            _ => return Err(Errno::ENOTTY),
        };
        // the flags are passed as a number of four bytes, though the call is declared with eight
        out.truncate(room as usize);
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_agree_with_those_of_the_engine() {
        let all = BITS.iter().fold(0, |all, entry| all | entry.0.0);
        let linux = changed(FileFlags(0), FileFlags(all).linux(), |entry| entry.1);
        let xflags = changed(FileFlags(0), FileFlags(all).linux_xflags(), |entry| entry.2);
        assert_eq!((linux, xflags), (Ok(FileFlags(all)), Ok(FileFlags(all))));
        assert_eq!(changed(FileFlags(all), 0, |entry| entry.1), Ok(FileFlags(0)));
        assert_eq!(changed(FileFlags(0), 1, |entry| entry.1), Err(Errno::ENOTSUP));
    }
}
