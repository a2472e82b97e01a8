//! The object set and the header of its intent log (OpenZFS: `objset_phys_t`, `zil_header_t`).

use base::{Endian, Txg, bytes};

use crate::{BlkPtr, DnodePhys, Error};

/// Size of a [`ZilHeader`] on disk.
pub const ZIL_HEADER_SIZE: usize = 192;

/// The kind of an object set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ObjsetType {
    /// Not yet set.
    None,
    /// The meta object set of a pool.
    Meta,
    /// A file system.
    Zfs,
    /// A volume.
    Zvol,
    /// Something else.
    Other,
    /// A number that no OpenZFS writes.
    Unknown(u64),
}

impl From<ObjsetType> for u64 {
    fn from(t: ObjsetType) -> Self {
        match t {
            ObjsetType::None => 0,
            ObjsetType::Meta => 1,
            ObjsetType::Zfs => 2,
            ObjsetType::Zvol => 3,
            ObjsetType::Other => 4,
            ObjsetType::Unknown(n) => n,
        }
    }
}

impl From<u64> for ObjsetType {
    fn from(n: u64) -> Self {
        match n {
            0 => ObjsetType::None,
            1 => ObjsetType::Meta,
            2 => ObjsetType::Zfs,
            3 => ObjsetType::Zvol,
            4 => ObjsetType::Other,
            n => ObjsetType::Unknown(n),
        }
    }
}

/// The header of an intent log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ZilHeader {
    /// The txg in which the log blocks were claimed, 0 if not.
    pub claim_txg: Txg,
    /// Highest replayed record sequence.
    pub replay_seq: u64,
    /// The first log block; its checksum words are the chain's identity.
    pub log: BlkPtr,
    /// Highest claimed block sequence.
    pub claim_blk_seq: u64,
    /// 1: replay needed; 2: `claim_lr_seq` is valid.
    pub flags: u64,
    /// Highest claimed record sequence.
    pub claim_lr_seq: u64,
}

impl ZilHeader {
    /// Decodes 192 bytes.
    ///
    /// # Errors
    /// [`Error::Truncated`].
    pub fn decode(buf: &[u8], e: Endian) -> Result<Self, Error> {
        let word = |off| bytes::u64(buf, off, e).ok_or(Error::short("ZIL header", ZIL_HEADER_SIZE, buf.len()));
        Ok(ZilHeader {
            claim_txg: Txg(word(0)?),
            replay_seq: word(8)?,
            log: BlkPtr::decode(buf.get(16..).unwrap_or(&[]), e)?,
            claim_blk_seq: word(144)?,
            flags: word(152)?,
            claim_lr_seq: word(160)?,
        })
    }

    /// The header of a log that was never used.
    #[must_use]
    pub const fn empty() -> Self {
        let (claim_txg, log) = (Txg(0), BlkPtr::HOLE);
        ZilHeader { claim_txg, replay_seq: 0, log, claim_blk_seq: 0, flags: 0, claim_lr_seq: 0 }
    }

    /// Encodes the header; unused bytes are zero.
    #[must_use]
    pub fn encode(&self, e: Endian) -> [u8; ZIL_HEADER_SIZE] {
        let mut out = [0; ZIL_HEADER_SIZE];
        out[..8].copy_from_slice(&e.put_u64(self.claim_txg.0));
        out[8..16].copy_from_slice(&e.put_u64(self.replay_seq));
        out[16..144].copy_from_slice(&self.log.encode(e));
        out[144..152].copy_from_slice(&e.put_u64(self.claim_blk_seq));
        out[152..160].copy_from_slice(&e.put_u64(self.flags));
        out[160..168].copy_from_slice(&e.put_u64(self.claim_lr_seq));
        out
    }
}

/// The root block of a dataset.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ObjsetPhys {
    /// Object 0: the file of all dnodes.
    pub meta_dnode: DnodePhys,
    /// The intent log.
    pub zil_header: ZilHeader,
    /// The kind of the set.
    pub os_type: ObjsetType,
    /// 1 user accounting complete, 2 object accounting, 4 project accounting.
    pub flags: u64,
    /// MAC over the parts that a raw send preserves.
    pub portable_mac: [u8; 32],
    /// MAC over the accounting objects.
    pub local_mac: [u8; 32],
    /// Object −1, space by user; `None` in old, 1 KiB object sets or when unused.
    pub userused: Option<DnodePhys>,
    /// Object −2, space by group.
    pub groupused: Option<DnodePhys>,
    /// Object −3, space by project.
    pub projectused: Option<DnodePhys>,
    /// The byte order in which it was written.
    pub endian: Endian,
}

impl ObjsetPhys {
    /// User and group accounting is complete.
    pub const FLAG_USERACCOUNTING: u64 = 1;
    /// Object counts per user are complete.
    pub const FLAG_USEROBJACCOUNTING: u64 = 2;
    /// Project accounting is complete.
    pub const FLAG_PROJECTACCOUNTING: u64 = 4;

    /// Decodes a 1, 2 or 4 KiB object set block.
    ///
    /// # Errors
    /// [`Error::Truncated`] below 1 KiB, or the error of a dnode in it.
    pub fn decode(buf: &[u8], e: Endian) -> Result<Self, Error> {
        if buf.len() < 1024 {
            return Err(Error::short("object set", 1024, buf.len()));
        }
        let at = |off: usize| buf.get(off..off + 512);
        let extra = |off: usize| match at(off) {
            None => Ok(None),
            Some(b) => DnodePhys::decode(b, e).map(|dn| (dn.object_type.0 != 0).then_some(dn)),
        };
        Ok(ObjsetPhys {
            meta_dnode: DnodePhys::decode(at(0).unwrap_or(&[]), e)?,
            zil_header: ZilHeader::decode(buf.get(512..704).unwrap_or(&[]), e)?,
            os_type: ObjsetType::from(bytes::u64(buf, 704, e).unwrap_or(0)),
            flags: bytes::u64(buf, 712, e).unwrap_or(0),
            portable_mac: bytes::array(buf, 720).unwrap_or([0; 32]),
            local_mac: bytes::array(buf, 752).unwrap_or([0; 32]),
            userused: extra(1024)?,
            groupused: extra(1536)?,
            projectused: extra(2048)?,
            endian: e,
        })
    }

    /// Converts the root block of a big-endian object set, as it is written from now on.
    ///
    /// # Errors
    /// As [`DnodePhys::into_little`].
    pub fn into_little(self) -> Result<Self, Error> {
        let turned = |dn: Option<DnodePhys>| dn.map(DnodePhys::into_little).transpose();
        Ok(ObjsetPhys {
            meta_dnode: self.meta_dnode.into_little()?,
            userused: turned(self.userused)?,
            groupused: turned(self.groupused)?,
            projectused: turned(self.projectused)?,
            endian: Endian::Little,
            ..self
        })
    }

    /// Encodes the block, in its own byte order, into `size` bytes: 1024, or 2048 with space for the dnodes of users and groups, or 4096
    /// with space for that of projects as well. Dnodes beyond `size` are omitted.
    #[must_use]
    pub fn encode(&self, size: usize) -> Vec<u8> {
        let e = self.endian;
        let mut out = vec![0; size];
        let mut put = |at: usize, b: &[u8]| {
            if let Some(place) = out.get_mut(at..at + b.len()) {
                place.copy_from_slice(b);
            }
        };
        put(0, &self.meta_dnode.encode());
        put(512, &self.zil_header.encode(e));
        put(704, &e.put_u64(self.os_type.into()));
        put(712, &e.put_u64(self.flags));
        put(720, &self.portable_mac);
        put(752, &self.local_mac);
        for (at, dn) in [(1024, &self.userused), (1536, &self.groupused), (2048, &self.projectused)] {
            if let Some(dn) = dn {
                put(at, &dn.encode());
            }
        }
        out
    }
}
