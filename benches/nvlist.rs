//! `cargo bench -p zuse-benches --bench nvlist [-- rounds=5]`: our list and Debian's libnvpair, in turn, on the same names in the same order.
//!
//! Prints nanoseconds of CPU time an operation, medians over the rounds, and the ratio. The peer is `zpeer nvlist` (`peer/build-peer target/peer`);
//! without it only our own figures are shown. The names are snapshot names of 43 bytes, looked up and removed in random order; a
//! miss asks for a name of 16 bytes, as the peer does. "many" hands over all names in one call (`get_many`, `remove_many`); the peer,
//! which has no such call, is asked one by one.

use std::hint::black_box;

use benches::{cpu_seconds, median, mix, run_peer, zpeer};
use nvlist::{Encoding, Endian, NvList, Value};

const SIZES: [usize; 3] = [10_000, 100_000, 1_000_000];

/// The peer's names for what is measured, and ours.
const COLUMNS: [(&str, &str); 12] = [
    ("add", "add-unique"),
    ("lookup", "lookup"),
    ("lookup", "lookup many"),
    ("miss", "miss"),
    ("remove", "remove"),
    ("remove", "remove many"),
    ("iter", "iterate"),
    ("free", "free"),
    ("pack_xdr", "pack XDR"),
    ("unpack_xdr", "unpack XDR"),
    ("pack_nat", "pack native"),
    ("unpack_nat", "unpack native"),
];

fn main() {
    let rounds = std::env::args().find_map(|a| a.strip_prefix("rounds=").and_then(|n| n.parse().ok())).unwrap_or(5);
    let peer = zpeer();
    if peer.is_none() {
        println!("no peer: build it with `peer/build-peer target/peer`, or set ZPEER; measuring ourselves alone");
    }
    let mut ours = vec![vec![Vec::new(); COLUMNS.len()]; SIZES.len()];
    let mut theirs = ours.clone();
    for _ in 0..rounds {
        for (size, samples) in SIZES.iter().zip(&mut ours) {
            for (sample, samples) in measure(*size).into_iter().zip(samples) {
                samples.push(sample);
            }
        }
        let Some(peer) = &peer else { continue };
        for result in run_peer(peer, &["nvlist", "clock=cpu"]) {
            let size = result.get("n").and_then(|n| n.parse().ok());
            let Some(at) = SIZES.iter().position(|s| Some(*s) == size) else { continue };
            for ((key, _), samples) in COLUMNS.iter().zip(&mut theirs[at]) {
                samples.extend(result.get(*key).and_then(|v| v.parse::<f64>().ok()));
            }
        }
    }
    println!("ns of CPU time per operation, median of {rounds} rounds");
    println!("{:>9}  {:<14}{:>9}{:>11}{:>8}", "pairs", "", "zuse", "libnvpair", "ratio");
    for ((size, ours), theirs) in SIZES.iter().zip(ours).zip(theirs) {
        for (((_, what), ours), theirs) in COLUMNS.iter().zip(ours).zip(theirs) {
            let (ours, theirs) = (median(ours), median(theirs));
            println!("{size:>9}  {what:<14}{ours:>9.1}{theirs:>11.1}{:>7.1}x", theirs / ours);
        }
    }
}

/// One round at one size: nanoseconds an operation, in the order of [`COLUMNS`].
fn measure(size: usize) -> Vec<f64> {
    let names: Vec<Name> = (0..size as u64).map(Name::of).collect();
    let order = shuffled(size);
    let repeats = match size {
        ..=10_000 => 20,
        10_001..=100_000 => 5,
        _ => 1,
    };
    let mut total = [0.0; COLUMNS.len()];
    for _ in 0..repeats {
        for (total, sample) in total.iter_mut().zip(once(&names, &order)) {
            *total += sample;
        }
    }
    total.iter().map(|t| t / (size * repeats) as f64).collect()
}

fn once(names: &[Name], order: &[u32]) -> [f64; COLUMNS.len()] {
    let mut list = NvList::new();
    let add = time(|| names.iter().for_each(|name| list.insert(name, Value::Boolean)));
    let lookup = time(|| {
        for at in order {
            let found = list.get(&names[*at as usize]);
            assert!(matches!(found, Some(Value::Boolean)));
        }
    });
    let in_order = || order.iter().map(|at| &names[*at as usize]);
    let lookup_many =
        time(|| list.get_many(in_order()).for_each(|found| assert!(matches!(found, Some(Value::Boolean)))));
    let absent: Vec<[u8; 16]> = (0..26 * 26).map(absent).collect();
    let miss = time(|| {
        for name in absent.iter().cycle().take(names.len()) {
            assert!(list.get(name).is_none());
        }
    });
    let iterate =
        time(|| assert_eq!(black_box(&list).iter_bytes().filter(|p| black_box(p).0.len() > 1).count(), names.len()));
    let [xdr, native] = [Encoding::Xdr, Encoding::Native].map(|encoding| {
        let mut packed = Vec::new();
        let pack = time(|| packed = list.pack(encoding, Endian::NATIVE).unwrap_or_default());
        let mut back = None;
        let unpack = time(|| back = NvList::unpack(&packed).ok());
        assert_eq!(back.map(|b| b.len()), Some(names.len()));
        [pack, unpack]
    });
    let copy = list.clone();
    let free = time(|| drop(copy));
    let mut copy = list.clone();
    let remove_many = time(|| assert_eq!(copy.remove_many(in_order()), names.len()));
    let remove = time(|| {
        for at in order {
            let removed = list.remove(&names[*at as usize]);
            assert!(removed.is_some());
        }
    });
    assert!(list.is_empty());

    let [[pack_xdr, unpack_xdr], [pack_native, unpack_native]] = [xdr, native];
    [
        add,
        lookup,
        lookup_many,
        miss,
        remove,
        remove_many,
        iterate,
        free,
        pack_xdr,
        unpack_xdr,
        pack_native,
        unpack_native,
    ]
}

/// Nanoseconds of CPU time.
fn time(work: impl FnOnce()) -> f64 {
    let start = cpu_seconds();
    work();
    (cpu_seconds() - start) * 1e9
}

/// A name in 64 bytes, as the peer keeps them: in one cache line. The first byte is its length, where the peer has a NUL at the end.
#[repr(align(64))]
struct Name([u8; 64]);

impl Name {
    fn of(i: u64) -> Name {
        let text = format!("rpool/data/db-{:03}@auto-2026-{:08x}-{i:06}", i % 500, mix(i) & 0xffff_ffff);
        let mut name = [0; 64];
        name[0] = text.len() as u8;
        name[1..=text.len()].copy_from_slice(text.as_bytes());
        Name(name)
    }
}

/// The peer's names that are not there.
fn absent(i: usize) -> [u8; 16] {
    let mut name = *b"rpool/data/none@";
    name[14] = b'a' + (i % 26) as u8;
    name[13] = b'a' + (i / 26 % 26) as u8;
    name
}

impl AsRef<[u8]> for Name {
    fn as_ref(&self) -> &[u8] {
        &self.0[1..=usize::from(self.0[0])]
    }
}

/// The peer's random order.
fn shuffled(size: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..size as u32).collect();
    let mut state = 99u64;
    for i in (1..size).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        order.swap(i, (state % (i as u64 + 1)) as usize);
    }
    order
}
