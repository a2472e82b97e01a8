//! Encoded records decode to the same records.

use proptest::prelude::*;

use super::super::{Records, Whiteout};
use super::*;

/// The parts that records are made of.
#[derive(Clone, Debug)]
struct Parts {
    words: [u64; 12],
    texts: [Vec<u8>; 3],
    bytes: Vec<u8>,
    fuids: Vec<u64>,
    stamp: [u8; 32],
    bitmap: Vec<u32>,
    bps: Vec<[u64; 16]>,
}

fn parts() -> impl Strategy<Value = Parts> {
    let text = || proptest::collection::vec(1u8.., 0..40);
    (
        any::<[u64; 12]>(),
        [text(), text(), text()],
        proptest::collection::vec(any::<u8>(), 1..100),
        proptest::collection::vec(any::<u64>(), 0..4),
        any::<[u8; 32]>(),
        proptest::collection::vec(any::<u32>(), 0..4),
        proptest::collection::vec(any::<[u64; 16]>(), 1..4),
    )
        .prop_map(|(words, texts, bytes, fuids, stamp, bitmap, bps)| Parts {
            words,
            texts,
            bytes,
            fuids,
            stamp,
            bitmap,
            bps,
        })
}

impl Parts {
    fn word(&self, at: usize) -> u64 {
        self.words[at]
    }

    fn attrs(&self) -> AttrPart<'_> {
        let crtime = [self.word(1), self.word(2)];
        AttrPart { bitmap: self.bitmap.clone(), attrs: self.word(0), crtime, scanstamp: &self.stamp }
    }

    fn acl(&self) -> AclPart<'_> {
        let domains = vec![&self.texts[1][..], &self.texts[2]];
        let (count, flags) = (self.word(3), self.word(4));
        AclPart { count, flags, aces: &self.bytes, fuids: self.fuids.clone(), domains }
    }

    fn bp(&self) -> BlkPtr {
        BlkPtr { words: self.bps[0] }
    }

    fn create(&self, kind: TxType) -> Create<'_> {
        use TxType::{CreateAcl, CreateAclAttr, CreateAttr, MkdirAcl, MkdirAclAttr, MkdirAttr};
        let with_acl = matches!(kind, CreateAcl | CreateAclAttr | MkdirAcl | MkdirAclAttr);
        let with_attrs = matches!(kind, CreateAttr | CreateAclAttr | MkdirAttr | MkdirAclAttr);
        // the upper half of an id says whether there is a domain
        let (uid, gid) = (self.word(5) & 0x3_ffff_ffff, self.word(6) & 0x3_ffff_ffff);
        let domains = [uid >> 32, if gid >> 32 == uid >> 32 { 0 } else { gid >> 32 }];
        let domains = domains.into_iter().filter(|index| *index != 0).zip(&self.texts).map(|(_, text)| &text[..]);
        let own_domains = !with_acl && kind != TxType::Symlink;
        Create {
            doid: ObjectId(self.word(7)),
            foid: ObjectId(self.word(8) & 0xffff_ffff_ffff),
            slots: self.word(9) % 256 + 1,
            mode: self.word(10),
            uid,
            gid,
            generation: self.word(11),
            crtime: [self.word(0), self.word(1)],
            rdev: self.word(2),
            attrs: with_attrs.then(|| self.attrs()),
            acl: with_acl.then(|| self.acl()),
            domains: if own_domains { domains.collect() } else { Vec::new() },
            name: &self.texts[2],
            link: (kind == TxType::Symlink).then_some(&self.texts[0]),
        }
    }

    fn rename(&self, kind: TxType) -> Rename<'_> {
        let whiteout = (kind == TxType::RenameWhiteout).then(|| Whiteout {
            foid: ObjectId(self.word(2) & 0xffff_ffff_ffff),
            slots: self.word(3) % 256 + 1,
            mode: self.word(4),
            uid: self.word(5),
            gid: self.word(6),
            generation: self.word(7),
            crtime: [self.word(8), self.word(9)],
            rdev: self.word(10),
        });
        Rename {
            sdoid: ObjectId(self.word(0)),
            tdoid: ObjectId(self.word(1)),
            src: &self.texts[0],
            dst: &self.texts[1],
            whiteout,
        }
    }

    fn setattr(&self) -> SetAttr<'_> {
        let mask = self.word(1);
        SetAttr {
            foid: ObjectId(self.word(0)),
            mask,
            mode: self.word(2),
            uid: self.word(3) & 0xffff_ffff,
            gid: self.word(4) & 0xffff_ffff,
            size: self.word(5),
            atime: [self.word(6), self.word(7)],
            mtime: [self.word(8), self.word(9)],
            attrs: (mask & 1 << 31 != 0).then(|| self.attrs()),
            domains: Vec::new(),
        }
    }

    /// A record of a type, with or without its optional data.
    fn record(&self, kind: TxType, full: bool) -> Record<'_> {
        use TxType::*;
        let (foid, offset, length) = (ObjectId(self.word(0)), self.word(1), self.word(2));
        match kind {
            Commit => Record::Commit,
            Create | Mkdir | Mkxattr | Symlink | CreateAcl | CreateAttr | CreateAclAttr | MkdirAcl | MkdirAttr
            | MkdirAclAttr => Record::Create(self.create(kind)),
            Remove | Rmdir => Record::Remove { doid: foid, name: &self.texts[0] },
            Link => Record::Link { doid: foid, link_obj: ObjectId(offset), name: &self.texts[0] },
            Rename | RenameExchange | RenameWhiteout => Record::Rename(self.rename(kind)),
            Write | Write2 => {
                let (data, length) =
                    if full { (Some(&self.bytes[..]), self.bytes.len() as u64) } else { (None, length) };
                Record::Write(crate::zil::Write { foid, offset, length, blkptr: self.bp(), data })
            }
            Truncate => Record::Truncate { foid, offset, length },
            Setattr => Record::SetAttr(self.setattr()),
            AclV0 => Record::AclV0 { foid, count: 2, aces: &self.stamp[..24] },
            Acl => Record::Acl { foid, acl: self.acl() },
            Setsaxattr => Record::SetSaXattr { foid, name: &self.texts[0], value: full.then_some(&self.bytes) },
            CloneRange => {
                let bps = self.bps.iter().map(|words| BlkPtr { words: *words }).collect();
                Record::CloneRange { foid, offset, length, blksz: self.word(3), bps }
            }
        }
    }
}

proptest! {
    #[test]
    fn records_round_trip(parts in parts(), full: bool) {
        let mut block = Vec::new();
        let wanted: Vec<_> = TxType::ALL.iter().map(|kind| (*kind, parts.record(*kind, full))).collect();
        for (kind, record) in &wanted {
            let raw = record.encode(*kind);
            prop_assert_eq!(raw.len() % 8, 0);
            block.extend(raw);
        }
        let got: Vec<_> = Records::new(&block, Endian::Little).collect::<Result<_, _>>().unwrap();
        prop_assert_eq!(got.len(), wanted.len());
        for (raw, (kind, record)) in got.iter().zip(&wanted) {
            prop_assert_eq!(raw.header.kind(), Some(*kind));
            prop_assert_eq!((raw.header.txg, raw.header.seq), (base::Txg(0), 0));
            prop_assert_eq!(&raw.decode().unwrap(), record, "{:?}", kind);
        }
    }
}
