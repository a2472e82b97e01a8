//! A quota that was respected when a record was written does not prevent its replay, even if the replay itself reaches it
//! (OpenZFS: `zfs_id_overblockquota` exempts a replay).
#![allow(clippy::unwrap_used, dead_code)]

mod power;

use base::Errno;
use base::tunable;
use pool::{PropSource, SpaceKind, Value};
use power::{ROOT, Rig, sum};
use zpl::Kind;
use zpl::live::{NewFile, SetAttr};

const USER: u32 = 10;
const RECORD: usize = 4096;
const RECORDS: usize = 100;

#[test]
fn what_was_promised_within_a_quota_is_replayed_beyond_it() {
    // no record of the log is synced in a txg before the power failure
    let (timeout, percent) = (tunable::ZFS_TXG_TIMEOUT.get(), tunable::ZFS_DIRTY_DATA_SYNC_PERCENT.get());
    tunable::ZFS_TXG_TIMEOUT.set(3600);
    tunable::ZFS_DIRTY_DATA_SYNC_PERCENT.set(100);
    let rig = Rig::new(&["/d0"]);
    let zfs = rig.file_system("t/fs", &[("compression", 2), ("recordsize", RECORD as u64)], false);
    let id = zfs.create(&ROOT, zfs.fs().root(), b"f", &NewFile::new(Kind::File, 0o644)).unwrap().0;
    zfs.setattr(&ROOT, id, &SetAttr { uid: Some(USER), ..SetAttr::default() }).unwrap();
    zfs.set_quota(SpaceKind::UserQuota, USER.into(), 100 << 10).unwrap();
    // the replay assumes records of this size, so a window has few: the usage of the first ones is known when the last ones are
    // replayed
    let large = vec![("recordsize".to_string(), Value::Number(1 << 20))];
    rig.spa.set_props("t/fs", &large, PropSource::Local).unwrap();
    zfs.fsync(id).unwrap();
    zfs.spa().sync().unwrap();
    let data: Vec<u8> = (0..RECORD as u64).map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect();
    for n in 0..RECORDS {
        zfs.write(&ROOT, id, (n * RECORD) as u64, &data).unwrap();
    }
    zfs.fsync(id).unwrap();
    tunable::ZFS_DIRTY_DATA_SYNC_PERCENT.set(0);
    let after = rig.after_cut(&[], true);
    let again = after.open("t/fs");
    tunable::ZFS_TXG_TIMEOUT.set(timeout);
    tunable::ZFS_DIRTY_DATA_SYNC_PERCENT.set(percent);
    let mut read = vec![0; RECORD * RECORDS];
    assert_eq!(again.read(id, 0, &mut read).unwrap(), read.len());
    assert_eq!(sum(&read), sum(&data.repeat(RECORDS)));
    again.spa().sync().unwrap();
    let refused = again.append(&ROOT, id, b"more");
    assert_eq!(refused.unwrap_err().errno(), Errno::EDQUOT, "from now on the limit counts");
    drop(again);
    after.close();
}
