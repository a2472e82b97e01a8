//! The figures of a pool at work.
#![allow(clippy::unwrap_used)]

mod live;

use live::Live;
use pool::{Kstat, KstatData};

fn of(kstats: &[Kstat], name: &str) -> Kstat {
    kstats.iter().find(|kstat| kstat.name == name).unwrap().clone()
}

#[test]
fn a_pool_that_is_written_has_its_txgs_transactions_and_logs() {
    let live = Live::new();
    let before = live.spa.kstats();
    live.fs("t/a");
    for seed in 0..4 {
        live.file("t/a", 300_000, seed);
    }
    let after = live.spa.kstats();
    let grown = |set: &str, figure: &str| {
        let at = |kstats: &[Kstat]| of(kstats, set).get(figure).unwrap();
        at(&after) - at(&before)
    };
    assert!(grown("dmu_tx", "dmu_tx_assigned") >= 8);
    assert!(grown("arcstats", "hash_elements") > 0);
    let logs = of(&after, "log_spacemaps");
    assert_eq!(logs.module, "zfs/t");
    let log = |figure: &str| logs.get(figure).unwrap();
    assert!(log("logs") >= 4 && log("sus_nblocks") >= log("logs") && log("sus_memused") > 0, "{logs}");
    assert!(log("sus_nblocks") <= log("sus_blocklimit") && log("sus_nmetaslabs") > 0, "{logs}");

    let txgs = of(&after, "txgs");
    let KstatData::Table { columns, rows } = &txgs.data else { panic!("{txgs}") };
    assert!(rows.len() >= 5 && rows.iter().all(|row| row.len() == columns.len()), "{txgs}");
    assert!(rows.windows(2).all(|pair| pair[0][0] + 1 == pair[1][0]), "{txgs}");
    assert!(rows.iter().filter(|row| row[1] >= 300_000).count() >= 4, "{txgs}");
    assert_eq!(txgs.to_string().lines().count(), rows.len() + 1);

    // a reader of the same state sees the same logs
    let (synced, view) = (of(&live.spa.kstats(), "log_spacemaps"), of(&live.view().kstats().unwrap(), "log_spacemaps"));
    for figure in ["logs", "sus_nblocks", "oldest_txg", "sus_nmetaslabs"] {
        assert_eq!(view.get(figure), synced.get(figure), "{figure}");
    }
}
