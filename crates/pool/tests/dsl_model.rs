//! Snapshots, clones, promotions, renames, rollbacks and destroys in any order: what the pool says of space is what its blocks add up to.
#![allow(clippy::unwrap_used)]

mod live;

use std::collections::{BTreeMap, BTreeSet};

use base::{Guid, ObjectId, Txg};
use dmu::Walk;
use live::Live;
use pool::testing::Dice;
use pool::{Bookmark, Dataset, Error, ListOptions};

/// Steps of a run.
const STEPS: usize = 120;
/// Steps between two looks.
const BETWEEN: usize = 6;
/// Bytes of the file that all file systems share.
const FILE: u64 = 1 << 20;

/// A block, by where it lies and when it was written.
type Block = ([u64; 2], u64);

/// Blocks with what each takes: bytes used, compressed, uncompressed; and the txg that it was born in.
type Blocks = BTreeMap<Block, ([u64; 3], Txg)>;

fn blocks_of(ds: &Dataset) -> Blocks {
    let objset = ds.objset().unwrap();
    let tree = ds.pool().tree().clone();
    let mut all = Blocks::new();
    objset.walk(&mut |visit| {
        let bp = visit.bp;
        assert!(visit.damage.is_none());
        if !bp.is_hole() && !bp.is_embedded() {
            let dva = bp.dva(0);
            let used = bp.dvas().map(|dva| tree.top(dva.vdev()).unwrap().deflated(dva.asize())).sum();
            let metadata = bp.level() > 0 || bp.object_type().is_metadata();
            let uncomp = if metadata { bp.psize() } else { bp.lsize() };
            let old = all.insert(([dva.word0, dva.word1], bp.birth().0), ([used, bp.psize(), uncomp], bp.birth()));
            assert!(old.is_none());
        }
        Walk::Into
    });
    all
}

fn sum<'a>(blocks: impl Iterator<Item = (&'a Block, &'a ([u64; 3], Txg))>) -> [u64; 3] {
    blocks.fold([0; 3], |[a, b, c], (_, ([used, comp, uncomp], _))| [a + used, b + comp, c + uncomp])
}

/// Bytes of `one` that are not in `other`, and were born after `since`.
fn without(one: &Blocks, other: &Blocks, since: Txg) -> u64 {
    sum(one.iter().filter(|(block, (_, born))| !other.contains_key(*block) && *born > since))[0]
}

/// Blocks that bookmarks keep account of, by the guid of their snapshot.
type Marked = BTreeMap<Guid, Blocks>;

/// Everything that the pool keeps in figures is what a walk over all blocks gives.
fn check(live: &Live, marked: &Marked) {
    live.spa.wait_freed().unwrap();
    live.adds_up();
    let view = live.view();
    assert_eq!(view.root_dir().unwrap().child("$FREE").unwrap().unwrap().phys().used_bytes, 0);
    let all = view.list("t", &ListOptions::ALL).unwrap();
    let all: Vec<Dataset> = all.iter().filter_map(|entry| entry.dataset()).cloned().collect();
    let blocks: BTreeMap<ObjectId, Blocks> = all.iter().map(|ds| (ds.id(), blocks_of(ds))).collect();
    let none = Blocks::new();
    let of = |id: ObjectId| blocks.get(&id).unwrap_or(&none);
    for ds in &all {
        let (phys, own) = (ds.phys(), of(ds.id()));
        let name = ds.name();
        let figures = [phys.referenced_bytes, phys.compressed_bytes, phys.uncompressed_bytes];
        assert_eq!(figures, sum(own.iter()), "{name}: referenced");
        let next = if ds.is_snapshot() { of(phys.next_snap_obj) } else { &none };
        assert_eq!(phys.unique_bytes, without(own, next, phys.prev_snap_txg), "{name}: unique");
        let dead = ds.deadlist().unwrap().map_or(0, |list| list.space().used);
        assert_eq!(dead, without(of(phys.prev_snap_obj), own, Txg(0)), "{name}: deadlist");
        let clones =
            all.iter().filter(|other| !other.is_snapshot() && other.dir().phys().origin_obj == ds.id()).count();
        if ds.is_snapshot() {
            assert_eq!(phys.num_children, 1 + clones as u64, "{name}: children");
        }
    }
    for head in all.iter().filter(|ds| !ds.is_snapshot()) {
        let since = head.origin().unwrap().map_or(Txg(0), |origin| origin.phys().creation_txg);
        let snaps = head.snapshots().unwrap();
        let mut in_snaps = Blocks::new();
        snaps.iter().for_each(|snap| in_snaps.extend(of(snap.id()).iter().map(|(k, v)| (*k, *v))));
        let used = [head.used_by_dataset().unwrap(), head.used_by_snapshots().unwrap()];
        let truth = [without(of(head.id()), &none, since), without(&in_snaps, of(head.id()), since)];
        assert_eq!(used, truth, "{}: used", head.name());
        let below =
            |ds: &&Dataset| ds.name().strip_prefix(head.name()).is_some_and(|rest| rest.starts_with(['/', '@']));
        let (snapshots, heads): (Vec<&Dataset>, _) = all.iter().filter(below).partition(|ds| ds.is_snapshot());
        let counts = ["snapshot_count", "filesystem_count"].map(|name| live.get(head.name(), name).0);
        assert_eq!(counts, [snapshots.len() as u64, heads.len() as u64], "{}: counts", head.name());
        let reserved = live.get(head.name(), "refreservation").0;
        let unused = reserved.saturating_sub(head.phys().unique_bytes);
        assert_eq!(head.used_by_refreservation().unwrap(), unused, "{}", head.name());
        for mark in head.bookmarks().unwrap() {
            let phys = mark.phys();
            let next =
                snaps.iter().chain([head]).find(|ds| !ds.is_snapshot() || ds.phys().creation_txg > phys.creation_txg);
            let freed = without(&marked[&phys.guid], of(next.unwrap().id()), Txg(0));
            assert_eq!(phys.referenced_freed_before_next_snap, freed, "{}#{}", head.name(), mark.short_name());
        }
    }
}

/// A refused operation changes nothing; any other failure is a bug.
fn allowed(result: Result<(), Error>) -> bool {
    match result {
        Ok(()) => true,
        Err(Error::Refused { .. }) => false,
        Err(Error::Many(all)) if all.iter().all(|(_, error)| matches!(error, Error::Refused { .. })) => false,
        Err(error) => panic!("{error}"),
    }
}

fn step(live: &Live, dice: &Dice, n: usize, file: ObjectId, marked: &mut Marked) -> Option<(&'static str, bool)> {
    let view = live.view();
    let all = view.list("t", &ListOptions::ALL).unwrap();
    let all: Vec<&Dataset> = all.iter().filter_map(|entry| entry.dataset()).collect();
    let heads: Vec<String> = all.iter().filter(|ds| !ds.is_snapshot()).map(|ds| ds.name().to_string()).collect();
    let own: Vec<String> = heads.iter().filter(|name| *name != "t").cloned().collect();
    let snaps: Vec<String> = all.iter().filter(|ds| ds.is_snapshot()).map(|ds| ds.name().to_string()).collect();
    let spa = &live.spa;
    let (head, snap) = (dice.one(&own), dice.one(&snaps));
    Some(match dice.below(16) {
        0..=3 => {
            let at = dice.below(FILE as usize / 2) as u64;
            live.write(head?, file, at, dice.below(FILE as usize / 3), n as u64);
            ("write", true)
        }
        4..=5 => ("snapshot", allowed(spa.snapshot(&[format!("{}@{n}", head?)], &[]))),
        6 => {
            let parent = dice.one(&heads)?;
            ("clone", own.len() < 8 && allowed(spa.clone_dataset(snap?, &format!("{parent}/c{n}"), Vec::new())))
        }
        7..=8 => ("promote", allowed(spa.promote(head?))),
        9 => {
            let parent = dice.one(&heads)?;
            ("rename", allowed(spa.rename(head?, &format!("{parent}/r{n}"))))
        }
        10 => ("rollback", allowed(spa.rollback(head?, None).map(drop))),
        11 => ("destroy", own.len() > 2 && own.iter().any(|name| allowed(spa.destroy_head(name)))),
        12 => {
            let doomed: BTreeSet<String> = (0..=dice.below(3)).filter_map(|_| dice.one(&snaps).cloned()).collect();
            let doomed: Vec<String> = doomed.into_iter().collect();
            ("destroy snapshots", allowed(spa.destroy_snapshots(&doomed, dice.below(2) == 0)))
        }
        13 => {
            let prop = dice.one(&["quota", "reservation", "refquota", "refreservation"])?;
            let size = dice.one(&[0, 1u64 << 20, 3 << 20, 8 << 20])?;
            ("limit", allowed(live.set(head?, prop, *size)))
        }
        14 => {
            let snap = snap?;
            let (fs, _) = snap.split_once('@')?;
            let ds = view.dataset(snap).unwrap();
            marked.insert(ds.guid(), blocks_of(&ds));
            ("bookmark", allowed(spa.bookmark(&[(format!("{fs}#m{n}"), snap.clone())])))
        }
        _ => {
            let marks: Vec<Bookmark> =
                heads.iter().flat_map(|name| view.dataset(name).unwrap().bookmarks().unwrap()).collect();
            let mark = dice.one(&marks)?.name().to_string();
            ("destroy bookmark", allowed(spa.destroy_bookmarks(&[mark])))
        }
    })
}

/// A run of its own; gives how often each kind of step was done.
fn run(seed: u64) -> BTreeMap<&'static str, usize> {
    let live = Live::new();
    let dice = Dice::seeded(seed);
    live.fs("t/a");
    live.fs("t/b");
    // counts begin with the first limit
    live.set("t", "snapshot_limit", 1000).unwrap();
    let file = live.file("t/a", FILE as usize, 1);
    assert_eq!(live.file("t/b", FILE as usize, 2), file);
    let (mut marked, mut done) = (Marked::new(), BTreeMap::new());
    for n in 0..STEPS {
        if let Some((what, true)) = step(&live, &dice, n, ObjectId(file), &mut marked) {
            *done.entry(what).or_default() += 1;
        }
        if n % BETWEEN == 0 {
            check(&live, &marked);
        }
    }
    check(&live, &marked);
    live.judged();
    done
}

#[test]
fn space_is_what_blocks_add_up_to() {
    let mut kinds = BTreeSet::new();
    for seed in 1..4 {
        println!("seed {seed}");
        kinds.extend(run(seed).into_keys());
    }
    assert_eq!(kinds.len(), 11, "{kinds:?}");
}
