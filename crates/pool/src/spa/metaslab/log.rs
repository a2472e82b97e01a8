//! Reading the logs of space changes, all of them, as an import must.
//!
//! What is not in the metaslabs' own maps is in as many logs as there were txgs since, and no metaslab can be used before all are read. They
//! are read in windows of some MiB: the blocks of a window many at a time, whichever logs they are of, for devices that are far away; then
//! [`Unflushed::apply`] deals out what they say. Memory is that of a window and of what is unflushed, however long the logs are.

use std::ops::Range;

use base::{ObjectId, Txg, pump};
use space::log::{LogError, Unflushed};

use crate::spa::metaslab::spacemap::SpaceMap;
use crate::spa::mos::Mos;
use crate::{Error, Pool};

/// Bytes of logs that are in memory at a time; decoded they take some four times as much.
const WINDOW: u64 = 16 << 20;
/// Bytes that are read one block after another.
const PART: u64 = 256 << 10;
/// Blocks that are.
const PART_BLOCKS: u64 = 8;

/// A log.
pub(crate) struct SpaceLog {
    /// Its txg.
    pub(crate) txg: Txg,
    /// Its space map.
    pub(crate) object: ObjectId,
    /// Blocks with entries.
    pub(crate) blocks: u64,
    /// Bytes of entries.
    pub(crate) bytes: u64,
}

/// Consecutive blocks of one log.
type Part = (Txg, SpaceMap, Range<u64>);

/// Takes the pool's logs, in order, into what is `unflushed`.
pub(crate) fn read(pool: &Pool, mos: &Mos, unflushed: &mut Unflushed) -> Result<Vec<SpaceLog>, Error> {
    let names = pool.log_space_maps()?;
    let opened = pump::all(names, |(txg, object)| Ok::<_, Error>((*txg, SpaceMap::open(mos, *object)?)));
    let mut logs = Vec::new();
    let (mut window, mut bytes) = (Vec::new(), 0);
    for log in opened {
        let (txg, map) = log?;
        let (blocks, size) = (map.blocks()?, map.object.block_size().max(1));
        logs.push(SpaceLog { txg, object: map.object.id(), blocks, bytes: map.header.length });
        let step = (PART / size).clamp(1, PART_BLOCKS);
        for first in (0..blocks).step_by(step as usize) {
            let part = first..blocks.min(first + step);
            bytes += (part.end - part.start).saturating_mul(size);
            window.push((txg, map.clone(), part));
            if bytes >= WINDOW {
                take_in(std::mem::take(&mut window), unflushed)?;
                bytes = 0;
            }
        }
    }
    take_in(window, unflushed)?;
    Ok(logs)
}

fn take_in(window: Vec<Part>, unflushed: &mut Unflushed) -> Result<(), Error> {
    let entries = pump::all(window, |(txg, log, blocks)| {
        log.log_entries(*txg, blocks.clone()).map(|entries| ((*txg, log.object.id()), entries))
    });
    let entries: Vec<_> = entries.into_iter().collect::<Result<_, Error>>()?;
    let names: Vec<(Txg, ObjectId)> = entries.iter().map(|(name, _)| *name).collect();
    let entries = entries.into_iter().map(|((txg, _), entries)| (txg, entries)).collect();
    unflushed.apply(entries).map_err(|LogError { txg, source }| {
        let object = names.iter().find(|(of, _)| *of == txg).map_or(ObjectId::NONE, |(_, object)| *object);
        Error::Space { object, source }
    })
}
