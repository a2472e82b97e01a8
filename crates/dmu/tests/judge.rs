//! Compares OpenZFS's zdb output on every object of a pool with what is read here: shape, ZAP entries in order,
//! attributes.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use base::ObjectId;
use dmu::sa::{Attr, SaTable};
use dmu::{Object, Zap, ZapEntry};
use ondisk::ObjectType;
use oracle::judge;
use support::Fixture;

/// zdb's text on each object, by dataset (0 is the MOS) and object.
fn judged(fixture: &Fixture) -> Option<BTreeMap<(ObjectId, ObjectId), Vec<u8>>> {
    let dir = fixture.images.dir.to_str().unwrap();
    let output = judge::run("zdb", &["-e", "-p", dir, "-dddd", &fixture.pool])?;
    let mut objects: BTreeMap<(ObjectId, ObjectId), Vec<u8>> = BTreeMap::new();
    let (mut set, mut object) = (None, None);
    let mut after_heading = false;
    for line in output.stdout.split_inclusive(|b| *b == b'\n') {
        let text = String::from_utf8_lossy(line);
        if text.starts_with("Dataset ") {
            let id =
                text.split("ID ").nth(1).and_then(|rest| rest.split(',').next()).and_then(|id| id.parse::<u64>().ok());
            // the MOS is called by its object set number, 0
            set = id.map(ObjectId);
            object = None;
        }
        if after_heading {
            object = text.split_whitespace().next().and_then(|id| id.parse::<i64>().ok());
        }
        after_heading = text.starts_with("    Object  lvl");
        if let (Some(set), Some(object), false) = (set, object, after_heading) {
            objects.entry((set, ObjectId(object.cast_unsigned()))).or_default().extend_from_slice(line);
        }
    }
    Some(objects)
}

/// zdb prints sizes in at most five characters, with decimals where they are not whole.
fn nice(n: u64) -> String {
    for (unit, name) in [(1 << 20, "M"), (1 << 10, "K")] {
        if n >= unit {
            if n.is_multiple_of(unit) {
                return format!("{}{name}", n / unit);
            }
            let texts = [2, 1, 0].map(|digits| format!("{:.digits$}{name}", n as f64 / unit as f64));
            return texts.iter().find(|text| text.len() <= 5).unwrap_or(&texts[2]).clone();
        }
    }
    n.to_string()
}

fn check_shape(object: &Object, text: &[u8], what: &str) {
    let text = String::from_utf8_lossy(text);
    let fields: Vec<&str> = text.lines().next().unwrap().split_whitespace().collect();
    let dn = object.phys();
    assert_eq!(fields[1], dn.nlevels.to_string(), "{what}: levels");
    assert_eq!(fields[3], nice(object.block_size()), "{what}: block size");
    assert_eq!(fields[5], nice(dn.size() as u64), "{what}: dnode size");
    assert!(text.contains(&format!("dnode maxblkid: {}\n", dn.maxblkid)), "{what}: {text}");
    let named = dn.object_type.is_self_describing() || text.lines().next().unwrap().contains(&dn.object_type.name());
    assert!(named, "{what}: type {:?}: {text}", dn.object_type);
}

/// The lines of a ZAP as zdb writes them, where its plain dump applies.
fn entry_line(object: &Object, entry: &ZapEntry) -> Vec<u8> {
    let mut line = b"\t\t".to_vec();
    line.extend_from_slice(&entry.name);
    line.extend_from_slice(b" = ");
    let mut value = String::new();
    match (object.phys().object_type, entry.value.int_size) {
        (ObjectType::DIRECTORY_CONTENTS, _) => {
            write!(value, "{} (type:", entry.value.first() & ((1 << 48) - 1)).unwrap()
        }
        (_, 1) => {}
        _ => entry.value.iter().for_each(|n| write!(value, "{n} ").unwrap()),
    }
    line.extend_from_slice(value.as_bytes());
    line
}

fn check_zap(object: &Object, text: &[u8], what: &str) -> usize {
    let zap = Zap::open(object.clone()).unwrap();
    let mut rest = text;
    let mut count = 0;
    for entry in zap.entries().unwrap() {
        let entry = entry.unwrap();
        let line = entry_line(object, &entry);
        let at = rest.windows(line.len()).position(|part| part == line);
        let at = at.unwrap_or_else(|| {
            panic!("{what}: no {:?} in\n{}", String::from_utf8_lossy(&line), String::from_utf8_lossy(rest))
        });
        rest = &rest[at + line.len()..];
        count += 1;
    }
    let text = String::from_utf8_lossy(text);
    let stats = zap.stats();
    match &stats.fat {
        None => assert!(
            text.contains(&format!("microzap: {} bytes, {} entries", stats.blocksize, stats.num_entries)),
            "{what}: {text}"
        ),
        Some(fat) => {
            assert!(text.contains(&format!("ZAP entries: {}\n", stats.num_entries)), "{what}");
            assert!(text.contains(&format!("zap_salt: {:#x}\n", fat.header.salt)), "{what}");
            let histograms = [
                ("Leafs with 2^n pointers:", &fat.leafs_with_2n_pointers),
                ("Blocks with n*5 entries:", &fat.blocks_with_n5_entries),
                ("Blocks n/10 full:", &fat.blocks_n_tenths_full),
                ("Entries with n chunks:", &fat.entries_using_n_chunks),
                ("Buckets with n entries:", &fat.buckets_with_n_entries),
            ];
            for (title, histogram) in histograms {
                let lines =
                    text.split(title).nth(1).unwrap().lines().skip(1).map_while(|line| line.trim().split_once(':'));
                for (n, rest) in lines {
                    let Ok(n) = n.trim().parse::<usize>() else { break };
                    let seen: u64 = rest.split_whitespace().next().unwrap().parse().unwrap();
                    assert_eq!(histogram[n], seen, "{what}: {title} {n}");
                }
            }
        }
    }
    count
}

fn check_attrs(object: &Object, table: &SaTable, text: &[u8], what: &str) {
    let text = String::from_utf8_lossy(text);
    let attrs = table.attrs(object).unwrap();
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(&format!("\t{name}\t"))).map(str::trim);
    let word = |attr| attrs.u64(attr).unwrap();
    let wanted = [
        ("gen", word(Attr::Gen).to_string()),
        ("mode", format!("{:o}", word(Attr::Mode))),
        ("size", word(Attr::Size).to_string()),
        ("parent", word(Attr::Parent).to_string()),
        ("links", word(Attr::Links).to_string()),
        ("pflags", format!("{:x}", word(Attr::Flags))),
    ];
    for (name, value) in wanted {
        assert_eq!(field(name), Some(value.as_str()), "{what}: {name}: {text}");
    }
    match attrs.u64(Attr::Xattr).unwrap_or(0) {
        0 => assert!(matches!(field("xattr"), None | Some("0")), "{what}"),
        xattr => assert_eq!(field("xattr"), Some(xattr.to_string().as_str()), "{what}"),
    }
}

/// Objects, ZAP entries and files that agreed.
fn check(name: &str) -> Option<(usize, usize, usize)> {
    let fixture = Fixture::open(name).unwrap();
    let judged = judged(&fixture)?;
    let mut sets = vec![fixture.mos.clone()];
    sets.extend(fixture.datasets());
    let (mut objects, mut entries, mut files) = (0, 0, 0);
    for os in sets {
        let theirs: Vec<ObjectId> = judged
            .range((os.id(), ObjectId(1))..(os.id(), ObjectId(1 << 60)))
            .map(|((_, object), _)| *object)
            .collect();
        if theirs.is_empty() {
            continue;
        }
        let ours: Vec<ObjectId> = os.objects().map(|object| object.unwrap().id()).collect();
        assert_eq!(ours, theirs, "{name}: dataset {}", os.id());
        let master = os.object(ObjectId(1)).ok().filter(|o| o.phys().object_type == ObjectType::MASTER_NODE);
        let table = master.map(|master| {
            let sa = Zap::open(master).unwrap().lookup_u64("SA_ATTRS").unwrap();
            SaTable::load(&os, ObjectId(sa.unwrap_or(0))).unwrap()
        });
        for object in os.objects() {
            let object = object.unwrap();
            let text = &judged[&(os.id(), object.id())];
            let what = format!("{name}: {object:?}");
            check_shape(&object, text, &what);
            // zdb writes these ZAPs in ways of their own
            let own_way = [
                ObjectType::SA_ATTR_REGISTRATION,
                ObjectType::SA_ATTR_LAYOUTS,
                ObjectType::DSL_CLONES,
                ObjectType::DDT_ZAP,
            ];
            let t = object.phys().object_type;
            if t.is_zap() && !own_way.contains(&t) && !(os.id() == ObjectId::MOS && t.is_self_describing()) {
                entries += check_zap(&object, text, &what);
            }
            if let (Some(table), ObjectType::SA | ObjectType::ZNODE) = (&table, object.phys().bonus_type) {
                check_attrs(&object, table, text, &what);
                files += 1;
            }
            objects += 1;
        }
    }
    Some((objects, entries, files))
}

#[test]
fn zdb_sees_the_same_objects_entries_and_attributes() {
    for name in ["basic-a", "legacy-a", "legacy-b", "lmz-a", "names-a", "posix-a", "sparse-a", "snaps-a", "zvol-a"] {
        let Some((objects, entries, files)) = check(name) else { return };
        println!("{name}: {objects} objects, {entries} entries, {files} files");
        assert!(objects > 60 && entries > 60, "{name}: {objects} {entries} {files}");
    }
}
