//! Names that a stream brings and that the file system cannot look up, as it compares names otherwise than the system that stored them.
#![allow(clippy::unwrap_used)]

mod support;
mod target;

use std::sync::Arc;

use dmu::{NewObject, Zap};
use ondisk::{ObjectType, ObjsetType};
use pool::{NewDataset, Spa};
use stream::recv::{Received, RecvArgs};
use target::Target;
use target::remake::{boundaries, parts, resumed_at};
use zpl::create::{FsProps, create_fs};
use zpl::{FileSystem, NameInDir};

/// The property `normalization=formD`.
const FORM_D: u64 = 0x10;

/// Creates a file system.
fn create(spa: &Arc<Spa>, name: &str, normalization: u64) {
    let new = NewDataset::inheriting(name, ObjsetType::Zfs);
    let props = FsProps { normalization, ..FsProps::default() };
    spa.create_dataset(new, Box::new(move |objset, tx| create_fs(objset, tx, &props))).unwrap();
}

/// Adds names to the root directory, as another system would have stored them, and takes a snapshot.
fn add(spa: &Arc<Spa>, name: &str, names: &[&str], snapshot: &str) {
    let head = spa.view().unwrap().dataset(name).unwrap();
    let root = FileSystem::open(&head).unwrap().root();
    let objset = spa.objset(&head).unwrap();
    let zap = Zap::open(objset.object(root).unwrap()).unwrap();
    let tx = spa.tx(16 << 20).unwrap();
    let new = NewObject { object_type: ObjectType::PLAIN_FILE_CONTENTS, block_size: 128 << 10, ..NewObject::default() };
    let file = objset.alloc_object(&tx, &new).unwrap();
    file.write(&tx, 0, &vec![1; 1 << 20]).unwrap();
    names.iter().for_each(|name| zap.add_u64(&tx, name.as_bytes(), 8 << 60 | file.id().0).unwrap());
    drop(tx);
    spa.snapshot(&[format!("{name}@{snapshot}")], &[]).unwrap();
}

fn counts(received: &[Received]) -> (u64, u64) {
    let [Received { out_of_reach, .. }] = received else { panic!("{received:?}") };
    (out_of_reach.too_long.count, out_of_reach.same.count)
}

#[test]
fn names_that_cannot_be_looked_up_are_in_the_result() {
    let mut target = Target::new();
    let spa = target.spa().clone();
    let long = "\u{fc}".repeat(110);
    let args = RecvArgs { resumable: true, ..RecvArgs::default() };
    for (fs, normalization) in [("recva/n", FORM_D), ("recva/plain", 0)] {
        create(&spa, fs, normalization);
        add(&spa, fs, &["file", &long], "1");
        add(&spa, fs, &[&"\u{e4}".repeat(100), "\u{fc}", "u\u{308}"], "2");
    }
    let send = |fs: &str, to: &str, from: Option<&str>| {
        target.send(&format!("{fs}@{to}"), from.map(|from| format!("{fs}@{from}")).as_deref(), false)
    };
    // full; the names before are counted again, as the directory has changed
    let received = target.receive(&send("recva/n", "1", None), "recva/m", &args).unwrap();
    assert_eq!(counts(&received), (1, 0));
    let first = NameInDir {
        name: long.into_bytes(),
        dir: received[0].out_of_reach.too_long.first.clone().unwrap().dir,
        dir_path: Some(b"/".to_vec()),
    };
    assert_eq!(received[0].out_of_reach.too_long.first, Some(first));
    let increment = send("recva/n", "2", Some("1"));
    assert_eq!(counts(&target.receive(&increment, "recva/m", &args).unwrap()), (2, 1));
    // resumed, after the directory was received
    target.receive(&send("recva/n", "1", None), "recva/r", &args).unwrap();
    let all = parts(&increment);
    let cut = boundaries(&all)[all.len() - 3];
    target.receive(&increment[..cut], "recva/r", &args).unwrap_err();
    let token = spa.view().unwrap().dataset("recva/r").unwrap().receive_resume_token().unwrap().unwrap();
    let list = stream::token::decode(&token).unwrap();
    let (object, offset) = (list.get_u64("object").unwrap(), list.get_u64("offset").unwrap());
    assert!(offset > 0);
    assert_eq!(counts(&target.receive(&resumed_at(&all, object, offset), "recva/r", &args).unwrap()), (2, 1));
    // names that are compared byte for byte
    assert_eq!(counts(&target.receive(&send("recva/plain", "2", None), "recva/p", &args).unwrap()), (0, 0));
    drop(spa);
    target.close();
}
