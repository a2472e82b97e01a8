//! The records around the streams of a package.

use base::Guid;
use codec::fletcher::Fletcher4;
use nvlist::{Encoding, NvList};
use ondisk::send::{Begin, DMU_BACKUP_MAGIC, End, Header, Record, feature};

use super::{Error, Gathered};
use crate::send::OURS;

/// Header type of a package (OpenZFS: `DMU_COMPOUNDSTREAM`).
const COMPOUND: u64 = 2;

/// Returns the records that open a package: BEGIN with the list, and its END. Without `gathered` there is no list (`-I` alone).
///
/// # Errors
/// [`Error::TooLong`] if no receiver would accept it.
pub fn header(top: &str, to: &str, holds: bool, gathered: Option<&Gathered>) -> Result<Vec<u8>, Error> {
    let packed = gathered.map(|gathered| gathered.pack(top)).transpose()?.unwrap_or_default();
    let mut toname = Box::new([0; 256]);
    let name = format!("{top}@{to}");
    toname.iter_mut().zip(name.as_bytes().iter().take(255)).for_each(|(to, from)| *to = *from);
    let begin = Begin {
        magic: DMU_BACKUP_MAGIC,
        versioninfo: COMPOUND | if holds { feature::HOLDS << 2 } else { 0 },
        creation_time: 0,
        objset_type: 0,
        flags: 0,
        toguid: Guid(0),
        fromguid: Guid(0),
        toname,
    };
    let header = Header { payloadlen: packed.len() as u32, checksum: [0; 4], record: Record::Begin(begin) };
    let mut out = header.encode(OURS).to_vec();
    out.extend_from_slice(&packed);
    let mut sum = Fletcher4::new();
    sum.update(&out, OURS);
    out.extend_from_slice(&end(sum.value()));
    Ok(out)
}

/// Returns the record that closes a package: an END without a checksum.
#[must_use]
pub fn conclusion() -> Vec<u8> {
    end([0; 4]).to_vec()
}

fn end(checksum: [u64; 4]) -> [u8; ondisk::send::RECORD_SIZE] {
    let end = End { checksum, toguid: Guid(0) };
    Header { payloadlen: 0, checksum: [0; 4], record: Record::End(end) }.encode(OURS)
}

impl Gathered {
    fn pack(&self, top: &str) -> Result<Vec<u8>, Error> {
        let what = &self.what;
        let mut list = NvList::new();
        if let Some(from) = &what.from {
            list.insert("fromsnap", from);
        }
        list.insert("tosnap", &what.to);
        if !what.replicate {
            list.insert("not_recursive", ());
        }
        if what.raw {
            list.insert("raw", ());
        }
        let mut fss = NvList::new();
        for member in &self.members {
            fss.insert(format!("0x{:x}", member.head.guid.0), member.list.clone());
        }
        list.insert("fss", fss);
        let packed = list.pack(Encoding::Xdr, OURS)?;
        if packed.len() as u64 > base::tunable::ZFS_MAX_NVLIST_BYTES.get() {
            return Err(Error::TooLong { top: top.to_owned(), to: what.to.clone() });
        }
        Ok(packed)
    }
}
