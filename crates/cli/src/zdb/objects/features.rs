//! Checks that the reference counts of the pool's features equal the number of their users.

use std::collections::HashMap;
use std::io;

use dmu::Zap;
use ondisk::dsl::{BookmarkPhys, dataset_keys, dir_keys};
use pool::Dataset;

use super::{Cx, lists};

/// Features of the pool whose users can be counted. (All per-dataset features can.)
const COUNTED: [&str; 4] = ["redaction_bookmarks", "redaction_list_spill", "bookmark_written", "livelist"];

/// The users of features that were found.
#[derive(Default)]
pub(super) struct Counts {
    users: HashMap<&'static str, u64>,
    remap_deadlists: u64,
}

impl Counts {
    fn one(&mut self, name: &'static str) {
        *self.users.entry(name).or_default() += 1;
    }

    /// Counts the features that a dataset uses.
    pub(super) fn add(&mut self, cx: &mut Cx<'_>, dataset: &Dataset) {
        cx.told(dataset.features()).unwrap_or_default().into_iter().for_each(|name| self.one(name));
        if cx.told(dataset.field_id(dataset_keys::REMAP_DEADLIST)).flatten().is_some() {
            self.remap_deadlists += 1;
        }
        if dataset.is_snapshot() {
            return;
        }
        for mark in cx.told(dataset.bookmarks()).unwrap_or_default() {
            if mark.phys().redaction_obj.is_some() {
                self.one("redaction_bookmarks");
                if lists::redaction_spills(cx, &mark) {
                    self.one("redaction_list_spill");
                }
            }
            if mark.phys().flags & BookmarkPhys::FLAG_HAS_FBN != 0 {
                self.one("bookmark_written");
            }
        }
        if cx.told(dataset.dir().field_id(dir_keys::LIVELIST)).flatten().is_some() {
            self.one("livelist");
        }
    }

    /// Compares with the pool's counts; returns the exit status.
    pub(super) fn verify(mut self, cx: &mut Cx<'_>) -> io::Result<u8> {
        if !cx.options.has('L') {
            let destroyed = lists::named_count(cx, "com.delphix:deleted_clones");
            *self.users.entry("livelist").or_default() += destroyed;
        }
        let mut status = 0;
        let pool = cx.pool;
        for feature in pool.features() {
            let Some(def) = feature.def else { continue };
            let is_counted = def.is_per_dataset() || COUNTED.contains(&def.name);
            if !is_counted || !pool.feature_enabled(def.name) {
                continue;
            }
            let (name, refcount) = (def.name, feature.refcount);
            let users = self.users.get(name).copied().unwrap_or(0);
            if users == refcount {
                writeln!(cx.out, "Verified {name} feature refcount of {refcount} is correct")?;
            } else {
                writeln!(cx.out, "{name} feature refcount mismatch: {users} consumers != {refcount} refcount")?;
                status = 2;
            }
        }
        if status == 0 { self.verify_removal(cx) } else { Ok(status) }
    }

    /// Checks the remains of removed vdevs against the counts of their features.
    fn verify_removal(&self, cx: &mut Cx<'_>) -> io::Result<u8> {
        /// Size of a mapping's header from which on it names an object of counts.
        const MAPPING_WITH_COUNTS: usize = 32;
        let pool = cx.pool;
        let refcount = |name: &str| {
            let feature = pool.features().iter().find(|f| f.def.is_some_and(|def| def.name == name));
            feature.map_or(0, |f| f.refcount)
        };
        let (removal, obsolete) = (refcount("device_removal"), refcount("obsolete_counts"));
        let condensing = cx.told(pool.mos_words("com.delphix:condensing_indirect")).flatten().unwrap_or_default();
        let scip = if let [vdev, previous, mapping, ..] = condensing.as_slice()
            && *mapping != 0
        {
            writeln!(
                cx.out,
                "Condensing indirect vdev {vdev}: new mapping object {mapping}, prev obsolete sm {previous}\n"
            )?;
            2
        } else {
            0
        };
        let (mut indirect, mut precise, mut maps, mut counts) = (0u64, 0u64, 0u64, 0u64);
        for top in pool.tree().tops() {
            let config = top.config();
            if config.indirect_object.is_some() {
                indirect += 1;
                let header = lists::bonus_word(cx, config.indirect_object, 0);
                counts += u64::from(header.is_some_and(|(_, size)| size >= MAPPING_WITH_COUNTS));
            }
            if config.top_zap.is_some()
                && let Some(zap) = cx.told(pool.mos().object(config.top_zap).and_then(Zap::open_any))
            {
                let has = |key| zap.lookup_u64(key).ok().flatten().is_some_and(|n| n != 0);
                precise += u64::from(has("com.delphix:obsolete_counts_are_precise"));
                maps += u64::from(has("com.delphix:indirect_obsolete_sm"));
            }
        }
        let lists = u64::from(cx.told(pool.mos_lookup("com.delphix:obsolete_bpobj")).flatten().is_some());
        let mut status = 0;
        if removal == indirect {
            writeln!(cx.out, "Verified device_removal feature refcount of {removal} is correct")?;
        } else {
            status = 1;
            writeln!(cx.out, "Number of indirect vdevs ({indirect}) does not match feature count ({removal})")?;
        }
        let remap = self.remap_deadlists;
        let objects = precise + maps + counts + scip + lists + remap;
        if obsolete == objects {
            writeln!(cx.out, "Verified indirect_refcount feature refcount of {obsolete} is correct")?;
        } else {
            status = 1;
            writeln!(
                cx.out,
                "Number of obsolete counts objects ({objects}) does not match feature count ({obsolete})"
            )?;
            writeln!(cx.out, "pv:{precise} os:{maps} oc:{counts} sc:{scip} ob:{lists} rd:{remap}")?;
        }
        Ok(status)
    }
}
