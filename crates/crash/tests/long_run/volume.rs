//! Threads that write ranges of one volume.

use std::sync::Arc;
use std::time::Instant;

use crash::Rng;
use parking_lot::Mutex;

use crate::content::Content;
use crate::world::{VOLUME_BYTES, Work, World, failed};

/// Bytes of a thread's own range.
const RANGE: u64 = 1 << 20;
/// The longest write.
const WRITE_MAX: u64 = 64 << 10;

/// A thread that writes a range of the volume, which no other writes.
pub struct Writer<'a> {
    world: &'a World,
    offset: u64,
    model: Arc<Mutex<Content>>,
    rng: Rng,
}

impl<'a> Writer<'a> {
    pub fn new(world: &'a World, n: u64, seed: u64) -> Writer<'a> {
        // the ranges of neighbours share a block
        let offset = n * (RANGE + 1000) % (VOLUME_BYTES - RANGE);
        let model = Arc::new(Mutex::new(Content::new(vec![0; RANGE as usize])));
        world.volume_ranges.lock().insert(offset, model.clone());
        Writer { world, offset, model, rng: Rng::new(seed) }
    }
}

impl Work for Writer<'_> {
    fn step(&mut self) -> Result<(), String> {
        let volume = &self.world.volume;
        let at = self.rng.below(RANGE);
        let len = (1 + self.rng.below(WRITE_MAX)).min(RANGE - at);
        let (from, to) = (at as usize, (at + len) as usize);
        let mut model = self.model.lock();
        match self.rng.below(10) {
            0..3 => {
                let mut found = vec![0; len as usize];
                volume.read(self.offset + at, &mut found).map_err(failed("read"))?;
                if found != model[from..to] {
                    return Err(format!("the volume differs at {}, {len} bytes", self.offset + at));
                }
            }
            3 => {
                volume.discard(self.offset + at, len).map_err(failed("discard"))?;
                model.change(|model| model[from..to].fill(0));
            }
            kind => {
                let mut data = vec![0; len as usize];
                self.rng.fill(&mut data);
                let (began, sync) = (Instant::now(), kind == 4);
                match sync {
                    true => volume.write_sync(self.offset + at, &data),
                    false => volume.write(self.offset + at, &data),
                }
                .map_err(failed("write"))?;
                self.world.figures.wrote(began.elapsed(), sync);
                model.change(|model| model[from..to].copy_from_slice(&data));
            }
        }
        Ok(())
    }
}
