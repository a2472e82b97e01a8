//! The progress of a long survey on standard error, in zdb's words.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pool::Pool;
use pool::prop::nicebytes;

use crate::error::Failure;

use super::options::Options;
use super::text::trouble;
use super::top::whole_metaslabs;

/// Blocks between two checks of the clock.
const EVERY: u32 = 100;

/// The progress of a survey.
pub(super) struct Progress {
    start: Instant,
    told: Instant,
    total: u64,
    blocks: u32,
    silent: bool,
}

impl Progress {
    pub(super) fn new(pool: &Arc<Pool>, options: &Options) -> Result<Progress, Failure> {
        let total = pool.space().map_err(trouble)?.allocated;
        let now = Instant::now();
        let silent = options.json || options.level('b') >= 5;
        Ok(Progress { start: now, told: now, total, blocks: 0, silent })
    }

    /// Names the metaslabs whose space maps are being read.
    pub(super) fn loading(&self, pool: &Arc<Pool>) -> Result<(), Failure> {
        for top in pool.tree().tops().iter().filter(|top| top.is_indirect()) {
            let count = whole_metaslabs(top).0;
            for n in 0..count {
                progress!("\rloading indirect vdev {}, metaslab {n} of {count} ...", top.id());
            }
        }
        for top in pool.tree().tops().iter().filter(|top| top.is_concrete()) {
            let count = pool.metaslabs(top.id()).map_err(trouble)?.len();
            for n in 0..count {
                progress!("\rloading concrete vdev {}, metaslab {n} of {count} ...", top.id());
            }
        }
        eprintln!();
        Ok(())
    }

    /// Counts a block, and prints progress once a second.
    pub(super) fn tick(&mut self, done: u64) {
        self.blocks += 1;
        if self.silent || self.blocks < EVERY {
            return;
        }
        self.blocks = 0;
        if self.told.elapsed() < Duration::from_secs(1) {
            return;
        }
        self.told = Instant::now();
        let millis = self.start.elapsed().as_millis() as u64;
        let kib_per_sec = 1 + done / (1 + millis);
        let left = self.total.saturating_sub(done) / 1024 / kib_per_sec;
        progress!(
            "\r{:>5} completed ({:4}MB/s) estimated time remaining: {}hr {:02}min {:02}sec        ",
            nicebytes(done),
            kib_per_sec / 1024,
            left / 3600,
            left / 60 % 60,
            left % 60
        );
    }
}
