//! Every object of every dataset of every fixture is read, in the several ways there are, and they agree.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::HashSet;
use std::sync::Arc;

use base::ObjectId;
use dmu::sa::{Attr, SaTable};
use dmu::{Error, MatchMode, Object, Objset, Walk, Zap};
use ondisk::ObjectType;
use support::Fixture;

#[derive(Default, Debug)]
struct Seen {
    sets: usize,
    objects: usize,
    zaps: usize,
    entries: usize,
    files: usize,
    blocks: usize,
    locked: usize,
}

/// True if the fixture's damage explains the error.
fn forgiven(err: &Error) -> bool {
    matches!(err, Error::Zio(zio::Error::KeyNotLoaded { .. } | zio::Error::Redacted { .. }))
}

fn check_zap(object: &Object, seen: &mut Seen) {
    let zap = match Zap::open_any(object.clone()) {
        Ok(zap) => zap,
        Err(err) if forgiven(&err) => return seen.locked += 1,
        Err(err) => panic!("{object:?}: {err}"),
    };
    let entries: Vec<_> =
        zap.entries().unwrap().collect::<Result<_, _>>().unwrap_or_else(|err| panic!("{object:?}: {err}"));
    assert_eq!(entries.len() as u64, zap.count(), "{object:?}");
    assert!(entries.is_sorted_by(|a, b| (a.hash, a.cd) < (b.hash, b.cd)), "{object:?}");
    for (n, entry) in entries.iter().enumerate() {
        if zap.has_word_keys() {
            assert_eq!(zap.lookup_key(&entry.key()).unwrap().as_ref(), Some(&entry.value), "{object:?} {entry:?}");
        } else {
            assert_eq!(zap.lookup(&entry.name).unwrap().as_ref(), Some(&entry.value), "{object:?} {entry:?}");
            let mode = if zap.normflags() == 0 { MatchMode::Exact } else { MatchMode::Normalize };
            let found = zap.lookup_norm(&entry.name, mode).unwrap().unwrap();
            assert!(found.conflict || found.name == entry.name, "{object:?} {entry:?} {found:?}");
        }
        if n % 97 == 0 || n + 3 > entries.len() {
            let here = zap.entries_from(entry.cookie).unwrap().next().unwrap().unwrap();
            assert_eq!(&here, entry);
            let next = zap.entries_from(entry.next_cookie).unwrap().next().map(Result::unwrap);
            assert_eq!(next.as_ref(), entries.get(n + 1));
        }
    }
    assert_eq!(zap.lookup_key(&[7, 7, 7]).ok().flatten(), None);
    assert!(zap.has_word_keys() || zap.lookup("no such name").unwrap().is_none());
    let stats = zap.stats();
    if let Some(fat) = stats.fat {
        assert_eq!(fat.leafs_with_2n_pointers.iter().sum::<u64>(), fat.header.num_leafs, "{object:?}");
        assert_eq!(fat.entries_using_n_chunks.iter().sum::<u64>(), entries.len() as u64, "{object:?}");
    }
    seen.zaps += 1;
    seen.entries += entries.len();
}

/// A walk and the block-by-block ways agree on what there is.
fn check_blocks(object: &Object, seen: &mut Seen) {
    let mut data = Vec::new();
    let ended = object.walk(&mut |visit| {
        assert!(visit.damage.is_none(), "{object:?}: {:?}", visit.damage);
        if visit.level == 0 && !visit.bp.is_hole() && visit.bookmark.blkid != zio::Bookmark::SPILL_BLKID {
            data.push((visit.bookmark.blkid, *visit.bp));
        }
        Walk::Into
    });
    assert!(ended);
    let mut cursor = object.cursor();
    let mut at = Some(0);
    for (blkid, bp) in &data {
        assert_eq!(object.blkptr(0, *blkid).unwrap().as_ref(), Some(bp));
        let found = at.and_then(|from| cursor.next_block(from).unwrap());
        assert_eq!(found, Some(*blkid), "{object:?}");
        at = blkid.checked_add(1);
    }
    assert_eq!(at.and_then(|from| cursor.next_block(from).unwrap()), None, "{object:?}");
    seen.blocks += data.len();
}

fn check_set(os: &Arc<Objset>, seen: &mut Seen) {
    seen.sets += 1;
    let sa_object =
        os.object(ObjectId(1)).ok().filter(|o| o.phys().object_type == ObjectType::MASTER_NODE).map(|master| {
            let version = Zap::open(master.clone()).unwrap().lookup_u64("VERSION").unwrap();
            assert!((1..=5).contains(&version.unwrap()));
            Zap::open(master).unwrap().lookup_u64("SA_ATTRS").unwrap().unwrap_or(0)
        });
    let table = sa_object.map(|object| SaTable::load(os, ObjectId(object)));
    let mut ids = Vec::new();
    for object in os.objects() {
        let object = object.unwrap();
        ids.push(object.id());
        seen.objects += 1;
        assert_eq!(os.object(object.id()).unwrap().phys(), object.phys());
        check_blocks(&object, seen);
        if object.phys().object_type.is_zap() && object.block(0).is_ok_and(|block| block.is_some()) {
            check_zap(&object, seen);
        }
        match &table {
            Some(Ok(table)) if matches!(object.phys().bonus_type, ObjectType::SA | ObjectType::ZNODE) => {
                match table.attrs(&object) {
                    Ok(attrs) => {
                        assert!(attrs.spill_error().is_none(), "{object:?}: {:?}", attrs.spill_error());
                        assert!(
                            attrs.u64(Attr::Mode).is_some() && attrs.time(Attr::Mtime).is_some(),
                            "{object:?} {attrs:?}"
                        );
                        assert!(object.objset().object(ObjectId(attrs.u64(Attr::Parent).unwrap())).is_ok());
                        seen.files += 1;
                    }
                    Err(err) => panic!("{object:?}: {err}"),
                }
            }
            Some(Err(err)) => assert!(forgiven(err), "{err}"),
            _ => {}
        }
    }
    let (mut by_next, mut at) = (Vec::new(), ObjectId::NONE);
    while let Some(next) = os.next_object(at).unwrap() {
        by_next.push(next);
        at = next;
    }
    assert_eq!(by_next, ids);
    let known: HashSet<ObjectId> = ids.iter().copied().collect();
    for id in (1..ids.last().map_or(0, |id| id.0).min(2000)).map(ObjectId) {
        assert_eq!(os.object(id).is_ok(), known.contains(&id));
    }
    let mut objects = HashSet::new();
    os.walk(&mut |visit| {
        assert!(visit.damage.is_none());
        objects.insert(visit.bookmark.object);
        Walk::Into
    });
    assert!(known.is_subset(&objects));
}

#[test]
fn every_object_reads_the_same_in_every_way() {
    for name in oracle::fixtures::names() {
        let Some(fixture) = Fixture::open(&name) else { continue };
        let mut seen = Seen::default();
        check_set(&fixture.mos, &mut seen);
        for os in fixture.datasets() {
            check_set(&os, &mut seen);
        }
        println!("{name}: {seen:?}");
        assert!(seen.objects > 50 && seen.entries > 100, "{name}: {seen:?}");
    }
}
