use base::ObjectId;

use super::*;

fn record(kind: TxType, body: &[u64], tail: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let len = (32 + body.len() * 8 + tail.len()).next_multiple_of(8) as u64;
    for w in [kind as u64, len, 29, 7].iter().chain(body) {
        out.extend_from_slice(&w.to_le_bytes());
    }
    out.extend_from_slice(tail);
    out.resize(len as usize, 0);
    out
}

fn only(buf: &[u8]) -> RawRecord<'_> {
    Records::new(buf, Endian::Little).next().unwrap().unwrap()
}

/// One record of each type, with all its parts.
fn all_types() -> Vec<Vec<u8>> {
    let create = [34, 5 | 3 << 56, 0o100_644, 1 << 32 | 7, 2 << 32 | 8, 29, 100, 200, 0];
    let acl = [1, 1, 1, 12, 3];
    let with_acl: Vec<u64> = create.iter().chain(&acl).copied().collect();
    let mut attrs = vec![];
    attrs.extend_from_slice(&3u32.to_le_bytes());
    attrs.extend_from_slice(&[1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0]);
    for w in [0x10u64, 5, 6] {
        attrs.extend_from_slice(&w.to_le_bytes());
    }
    attrs.extend_from_slice(&[9; 32]);
    let aces = [&[1u8; 12][..], &[0; 4], &(1u64 << 32 | 3).to_le_bytes(), b"S-1-5\0"].concat();
    let plain = b"S-1-1\0S-1-2\0name\0".to_vec();
    let acl_tail = [&aces[..], b"name\0"].concat();
    let acl_attr_tail = [&attrs[..], &acl_tail].concat();
    let attr_tail = [&attrs[..], &plain].concat();
    let bp = [0u64; 16];
    let mut clone = vec![9, 0, 8192, 4096, 2];
    clone.extend([1u64; 32]);
    let mut write = vec![9, 512, 5, 0];
    write.extend(bp);
    TxType::ALL
        .iter()
        .map(|kind| {
            use TxType::*;
            match kind {
                Commit => record(*kind, &[], b""),
                Create | Mkdir | Mkxattr => record(*kind, &create, &plain),
                Symlink => record(*kind, &create, b"name\0target\0"),
                CreateAcl | MkdirAcl => record(*kind, &with_acl, &acl_tail),
                CreateAttr | MkdirAttr => record(*kind, &create, &attr_tail),
                CreateAclAttr | MkdirAclAttr => record(*kind, &with_acl, &acl_attr_tail),
                Remove | Rmdir => record(*kind, &[34], b"name\0"),
                Link => record(*kind, &[34, 9], b"name\0"),
                Rename | RenameExchange => record(*kind, &[34, 35], b"name\0target\0"),
                RenameWhiteout => {
                    record(*kind, &[34, 35, 5 | 3 << 56, 0o20_000, 1, 2, 29, 100, 200, 0], b"name\0target\0")
                }
                Write | Write2 => record(*kind, &write, b"hello"),
                Truncate => record(*kind, &[9, 512, 0], b""),
                Setattr => {
                    record(*kind, &[9, 1 << 31 | 2, 0, 1 << 32, 0, 0, 1, 2, 3, 4], &[&attrs[..], b"S-1-9\0"].concat())
                }
                AclV0 => record(*kind, &[9, 1], &[1; 12]),
                Acl => record(*kind, &[9, 1, 1, 1, 12, 3], &aces),
                Setsaxattr => record(*kind, &[9, 5], b"user.a\0value"),
                CloneRange => record(*kind, &clone, b""),
            }
        })
        .collect()
}

#[test]
fn every_type_decodes() {
    for (raw, kind) in all_types().iter().zip(TxType::ALL) {
        let rec = only(raw);
        assert_eq!(rec.header.kind(), Some(kind));
        match rec.decode().unwrap() {
            Record::Create(c) => {
                assert_eq!((c.doid, c.foid, c.slots, c.name), (ObjectId(34), ObjectId(5), 4, &b"name"[..]), "{kind:?}");
                assert_eq!(c.attrs.is_some(), kind.name().ends_with("ATTR") && kind != TxType::Mkxattr, "{kind:?}");
                if let Some(a) = &c.attrs {
                    assert_eq!(
                        (a.bitmap.as_slice(), a.attrs, a.crtime, a.scanstamp),
                        (&[1, 2, 3][..], 0x10, [5, 6], &[9; 32][..])
                    );
                }
                match &c.acl {
                    Some(a) => assert_eq!(
                        (a.count, a.flags, a.aces.len(), a.fuids.len(), a.domains.as_slice()),
                        (1, 3, 12, 1, &[&b"S-1-5"[..]][..])
                    ),
                    None if kind == TxType::Symlink => assert_eq!(c.link, Some(&b"target"[..])),
                    None => assert_eq!(c.domains, [b"S-1-1", b"S-1-2"]),
                }
            }
            Record::Rename(r) => {
                assert_eq!((r.src, r.dst), (&b"name"[..], &b"target"[..]));
                assert_eq!(r.whiteout.map(|w| w.slots), (kind == TxType::RenameWhiteout).then_some(4));
            }
            Record::Write(w) => assert_eq!((w.length, w.data), (5, Some(&b"hello"[..]))),
            Record::SetAttr(s) => assert_eq!(
                (s.uid, s.mtime, s.domains.as_slice(), s.attrs.is_some()),
                (1 << 32, [3, 4], &[&b"S-1-9"[..]][..], true)
            ),
            Record::SetSaXattr { name, value, .. } => assert_eq!((name, value), (&b"user.a"[..], Some(&b"value"[..]))),
            Record::CloneRange { bps, .. } => assert_eq!((bps.len(), rec.clear_blkptrs().unwrap()), (2, bps)),
            Record::Acl { acl, .. } => assert_eq!(acl.domains, [b"S-1-5"]),
            _ => {}
        }
    }
}

#[test]
fn cut_and_spoilt_records_are_errors_or_sound() {
    for raw in all_types() {
        for len in 0..raw.len() {
            let mut cut = raw[..len].to_vec();
            if let Some(word) = cut.get_mut(8..16) {
                word.copy_from_slice(&(len as u64).to_le_bytes());
            }
            for rec in Records::new(&cut, Endian::Little) {
                let _ = rec.map(|r| (r.decode().is_ok(), r.clear_blkptrs().is_ok()));
            }
        }
        for at in (16..raw.len()).step_by(8) {
            let mut bad = raw.clone();
            bad[at..at + 8].fill(0xff);
            let _ = only(&bad).decode();
        }
    }
}

#[test]
fn a_bad_length_ends_the_records() {
    let mut buf = record(TxType::Remove, &[34], b"a\0");
    buf.extend(record(TxType::Remove, &[34], b"b\0"));
    assert_eq!(Records::new(&buf, Endian::Little).count(), 2);
    buf[48 + 8] = 31;
    let mut records = Records::new(&buf, Endian::Little);
    assert!(records.next().unwrap().is_ok());
    assert!(records.next().unwrap().is_err());
    assert!(records.next().is_none());
}

#[test]
fn chain_blocks_of_both_layouts() {
    let mut next = BlkPtr::default();
    next.words[12..].copy_from_slice(&[1, 2, 3, 5]);
    let mut chain = vec![0; 8];
    chain.extend_from_slice(&next.encode(Endian::Big));
    chain.extend_from_slice(&[0; 8]);
    chain.resize(ZIL_CHAIN_SIZE, 0);
    let (mut front, mut back) = (chain.clone(), vec![7; 4096 - ZIL_CHAIN_SIZE]);
    front.resize(4096, 7);
    back.extend(&chain);
    for (buf, kind, at, fixed) in [(&mut front, 9, 136, 184), (&mut back, 5, 4096 - 48, 0)] {
        for (records, ok) in [(0, true), (16, true), (4096 - 184, true), (4096 - 183, false)] {
            buf[at..at + 8].copy_from_slice(&(fixed + records as u64).to_be_bytes());
            let got = ChainBlock::decode(buf, kind, Endian::Big);
            assert_eq!(got.as_ref().map(|b| b.records.len()).ok(), ok.then_some(records), "{kind}");
        }
    }
    assert!(ChainBlock::decode(&front, 7, Endian::Big).is_err());
    let mut bp = next;
    bp.words[15] = 4;
    assert!(is_successor(&bp, &next) && !is_successor(&next, &bp));
    assert_eq!(block_seq(&next), 5);
}
