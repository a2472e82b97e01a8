//! The state of the devices after a power cut.

use std::fmt;
use std::sync::Arc;

use vdev::Device;

use crate::recording::{Event, Tape};
use crate::{Overlay, Rng};

/// A power cut: the number of events that happened before it, and the seed that decides the fate of the writes that were not safe.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Cut {
    /// Number of events of the tape that had happened.
    pub at: usize,
    /// The seed for all other decisions.
    pub seed: u64,
}

/// The choice of pending writes that are lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loss {
    /// None: the tape is cut, and nothing else.
    Nothing,
    /// All of them.
    Everything,
    /// Each with this probability in percent.
    Each(u64),
    /// Exactly one of them.
    One,
    /// All but one.
    AllButOne,
    /// One device keeps all, the others lose all.
    AllButDevice,
    /// One device loses all, the others keep all.
    Device,
    /// Each device loses those after its own random position.
    Late,
    /// Each device loses those before its own random position.
    Early,
}

/// The choice of surviving writes that are torn: only some of their sectors reach the medium.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tear {
    /// None.
    None,
    /// The last few.
    Last,
    /// Each with this probability in percent.
    Each(u64),
}

/// The fate of the pending writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fate {
    /// The lost ones.
    pub loss: Loss,
    /// The torn ones.
    pub tear: Tear,
    /// The sectors that they are torn into, in bytes.
    pub grain: usize,
    /// True if they reach the medium in another order.
    pub reordered: bool,
}

/// The number of writes that count as the last few.
const LAST_FEW: usize = 3;

impl Fate {
    fn draw(rng: &Rng) -> Fate {
        let loss = match rng.below(100) {
            0..10 => Loss::Nothing,
            10..22 => Loss::Everything,
            22..45 => Loss::Each(*rng.pick(&[5, 20, 50, 80, 95])),
            45..60 => Loss::One,
            60..72 => Loss::AllButOne,
            72..78 => Loss::AllButDevice,
            78..84 => Loss::Device,
            84..92 => Loss::Late,
            _ => Loss::Early,
        };
        let tear = match rng.below(100) {
            0..50 => Tear::None,
            50..75 => Tear::Last,
            _ => Tear::Each(*rng.pick(&[5, 30, 100])),
        };
        Fate { loss, tear, grain: *rng.pick(&[512, 4096]), reordered: rng.percent(30) }
    }
}

impl Cut {
    /// Draws a cut of `tape`, with position and fate determined by the seed. Positions around flushes and promises are more frequent than
    /// others.
    #[must_use]
    pub fn draw<P>(tape: &Tape<P>, seed: u64) -> Cut {
        let rng = Rng::new(seed);
        let len = tape.events().len();
        let anywhere = rng.index(len + 1);
        let flush = || {
            tape.events().get(anywhere..)?.iter().position(|e| matches!(e, Event::Flush { .. })).map(|n| anywhere + n)
        };
        let at = match rng.below(100) {
            0..40 => Some(anywhere),
            // just before a flush: all its writes are pending
            40..65 => flush(),
            // just after a flush, or a few events later
            65..80 => flush().map(|at| at + 1 + rng.index(3)),
            _ if tape.promises().is_empty() => None,
            _ => Some(rng.pick(tape.promises()).at + rng.index(4)),
        };
        Cut { at: at.unwrap_or(anywhere).min(len), seed }
    }

    /// The fate of the pending writes.
    #[must_use]
    pub fn fate(&self) -> Fate {
        Fate::draw(&self.rng())
    }

    fn rng(&self) -> Rng {
        // a sequence independent of the one that drew the position
        Rng::new(self.seed ^ 0x6375_7420_6661_7465)
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fate { loss, tear, grain, reordered } = self.fate();
        let order = if reordered { ", reordered" } else { "" };
        write!(f, "cut {} after {} events (lost: {loss:?}, torn: {tear:?} at {grain}{order})", self.seed, self.at)
    }
}

/// Rebuilds states of one tape. It is fast if their positions ascend.
#[derive(Debug)]
pub struct Cutter<'a, P> {
    tape: &'a Tape<P>,
    /// Number of events processed.
    at: usize,
    /// The safe contents, by device.
    images: Vec<Arc<Vec<u8>>>,
    /// Pending writes by device, as event numbers.
    pending: Vec<Vec<usize>>,
}

impl<'a, P> Cutter<'a, P> {
    /// A cutter at the beginning of `tape`.
    #[must_use]
    pub fn new(tape: &'a Tape<P>) -> Cutter<'a, P> {
        let images = tape.start.iter().map(|disk| Arc::new(disk.to_vec())).collect();
        Cutter { tape, at: 0, images, pending: vec![Vec::new(); tape.start.len()] }
    }

    /// The state of the devices after `cut`.
    pub fn build(&mut self, cut: &Cut) -> Vec<Arc<Overlay>> {
        self.go_to(cut.at);
        let overlays = self.tape.start.iter().zip(&self.images);
        let overlays: Vec<_> =
            overlays.map(|(disk, image)| Arc::new(Overlay::new(disk.name.clone(), image.clone()))).collect();
        let rng = cut.rng();
        let fate = Fate::draw(&rng);
        let survivors = survivors(&self.pending, fate.loss, &rng);
        let last = survivors.iter().flatten().copied().max().unwrap_or(0);
        for (overlay, mut writes) in overlays.iter().zip(survivors) {
            if fate.reordered {
                rng.shuffle(&mut writes);
            }
            for number in writes {
                let Some(Event::Write { offset, bytes, .. }) = self.tape.events.get(number) else { continue };
                let torn = match fate.tear {
                    Tear::None => false,
                    Tear::Last => number + LAST_FEW > last,
                    Tear::Each(percent) => rng.percent(percent),
                };
                if torn {
                    write_torn(overlay, *offset, bytes, fate.grain, &rng);
                } else {
                    // the write was within the device when it was recorded, so it cannot fail
                    let _within = overlay.write_at(*offset, bytes);
                }
            }
        }
        overlays
    }

    fn go_to(&mut self, at: usize) {
        if at < self.at {
            *self = Cutter::new(self.tape);
        }
        for number in self.at..at.min(self.tape.events.len()) {
            match &self.tape.events[number] {
                Event::Write { device, .. } => self.pending[*device].push(number),
                Event::Flush { device } => self.settle(*device),
            }
        }
        self.at = at;
    }

    /// Makes the pending writes of a device safe.
    fn settle(&mut self, device: usize) {
        let writes = std::mem::take(&mut self.pending[device]);
        if writes.is_empty() {
            return;
        }
        let image = Arc::make_mut(&mut self.images[device]);
        for number in writes {
            if let Event::Write { offset, bytes, .. } = &self.tape.events[number] {
                let from = *offset as usize;
                image[from..from + bytes.len()].copy_from_slice(bytes);
            }
        }
    }
}

/// The pending writes that reach the medium, by device.
fn survivors(pending: &[Vec<usize>], loss: Loss, rng: &Rng) -> Vec<Vec<usize>> {
    let all: Vec<usize> = pending.iter().flatten().copied().collect();
    let chosen = all.get(rng.index(all.len())).copied();
    let device = rng.index(pending.len());
    let of_device = |(number, writes): (usize, &Vec<usize>)| -> Vec<usize> {
        let place = rng.index(writes.len() + 1);
        let keep = |nth: usize, write: usize| match loss {
            Loss::Nothing => true,
            Loss::Everything => false,
            Loss::Each(percent) => !rng.percent(percent),
            Loss::One => Some(write) != chosen,
            Loss::AllButOne => Some(write) == chosen,
            Loss::AllButDevice => number == device,
            Loss::Device => number != device,
            Loss::Late => nth < place,
            Loss::Early => nth >= place,
        };
        writes.iter().enumerate().filter(|(nth, write)| keep(*nth, **write)).map(|(_, write)| *write).collect()
    };
    pending.iter().enumerate().map(of_device).collect()
}

/// Writes some of the sectors of a write.
fn write_torn(overlay: &Overlay, offset: u64, bytes: &[u8], grain: usize, rng: &Rng) {
    let first = offset as usize / grain;
    let sectors = (offset as usize + bytes.len()).div_ceil(grain) - first;
    let (kind, place) = (rng.below(3), rng.index(sectors + 1));
    for nth in 0..sectors {
        let through = match kind {
            0 => nth < place,
            1 => nth >= place,
            _ => rng.percent(50),
        };
        let from = ((first + nth) * grain).saturating_sub(offset as usize);
        let to = ((first + nth + 1) * grain - offset as usize).min(bytes.len());
        if through {
            let _within = overlay.write_at(offset + from as u64, &bytes[from..to]);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::Recording;

    const SIZE: u64 = 256 << 10;

    /// A tape of random writes on two devices, with occasional flushes.
    fn noise(seed: u64) -> (Tape<()>, Vec<Vec<u8>>) {
        let rng = Rng::new(seed);
        let recording = Recording::new(&[("a".to_string(), SIZE), ("b".to_string(), SIZE)], 64 << 20);
        let devices = recording.devices();
        for _ in 0..400 {
            let device = rng.pick(&devices);
            if rng.percent(10) {
                device.flush().unwrap();
                continue;
            }
            let mut bytes = vec![0; 512 * (rng.index(40) + 1)];
            rng.fill(&mut bytes);
            device.write_at(rng.below(200) * 1024, &bytes).unwrap();
        }
        let read = |device: &Arc<dyn Device>| {
            let mut bytes = vec![0; SIZE as usize];
            device.read_at(0, &mut bytes).unwrap();
            bytes
        };
        let images = devices.iter().map(read).collect();
        (recording.finish(), images)
    }

    /// For each sector of a device, all contents that it may have after a cut: first the safe one, then those of the pending writes.
    fn allowed(tape: &Tape<()>, at: usize, device: usize) -> Vec<Vec<Vec<u8>>> {
        let mut sectors = vec![vec![vec![0u8; 512]]; SIZE as usize / 512];
        for event in &tape.events()[..at] {
            match event {
                Event::Write { device: of, offset, bytes } if *of == device => {
                    for (sector, bytes) in sectors.iter_mut().skip(*offset as usize / 512).zip(bytes.chunks(512)) {
                        sector.push(bytes.to_vec());
                    }
                }
                Event::Flush { device: of } if *of == device => {
                    sectors.iter_mut().for_each(|all| drop(all.drain(..all.len() - 1)));
                }
                _ => {}
            }
        }
        sectors
    }

    #[test]
    fn every_sector_is_safe_or_one_of_its_pending_writes() {
        let (tape, _) = noise(1);
        let mut cuts: Vec<Cut> = (0..150).map(|seed| Cut::draw(&tape, seed)).collect();
        cuts.sort_by_key(|cut| cut.at);
        let mut cutter = Cutter::new(&tape);
        let (mut differs, mut same) = (0, 0);
        for cut in &cuts {
            for (device, overlay) in cutter.build(cut).iter().enumerate() {
                for (sector, allowed) in overlay.to_vec().chunks(512).zip(allowed(&tape, cut.at, device)) {
                    assert!(allowed.iter().any(|bytes| bytes == sector), "{cut}");
                    if sector == allowed.last().unwrap() { same += 1 } else { differs += 1 }
                }
            }
        }
        assert!(differs > 1000 && same > 1000, "{differs} sectors lost, {same} not");
    }

    #[test]
    fn a_cut_is_the_same_whenever_it_is_built() {
        let (tape, images) = noise(2);
        let state = |cutter: &mut Cutter<()>, cut: &Cut| -> Vec<Vec<u8>> {
            cutter.build(cut).iter().map(|overlay| overlay.to_vec()).collect()
        };
        let mut rising: Vec<Cut> = (0..40).map(|seed| Cut::draw(&tape, seed)).collect();
        rising.sort_by_key(|cut| cut.at);
        let mut cutter = Cutter::new(&tape);
        let forward: Vec<_> = rising.iter().map(|cut| state(&mut cutter, cut)).collect();
        for (cut, seen) in rising.iter().zip(&forward).rev() {
            assert!(state(&mut cutter, cut) == *seen, "{cut}");
        }
        let end = tape.events().len();
        let whole = (0..).map(|seed| Cut { at: end, seed });
        let whole = whole
            .filter(|cut| cut.fate().loss == Loss::Nothing && cut.fate().tear == Tear::None && !cut.fate().reordered);
        assert!(state(&mut cutter, &whole.take(1).next().unwrap()) == images);
        let (again, _) = noise(2);
        assert_eq!(again.events(), tape.events());
    }
}
