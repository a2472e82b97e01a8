//! The planned pieces of a batch on their way to the leaves.
//!
//! What is adjacent goes out together, as a *run*. Runs go to all leaves in turns and are under way together, as many as the devices take
//! ([`LeafFlight`]); for that the bytes of a run are copied into one aligned buffer. A device that takes no time to speak of (memory, the page cache)
//! is written at once, from where the bytes are.

use std::io::IoSlice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::tasks;
use base::tunable::ZFS_VDEV_AGGREGATION_LIMIT;

use super::{BlockWrite, Piece, Plan, Source, ZEROS};
use crate::device::{Buffer, Landed, Way};
use crate::queue::LeafFlight;
use crate::tree::VdevTree;
use crate::{Direction, IoClass, Leaf};

/// Pieces of one write.
const PIECES_MAX: usize = 1024;
/// A write that takes longer waits for its device, which does others meanwhile.
const SLOW: Duration = Duration::from_millis(2);

/// A batch that was planned.
pub(super) struct Batch<'a> {
    pub(super) tree: &'a VdevTree,
    pub(super) class: IoClass,
    pub(super) blocks: &'a [BlockWrite<'a>],
    pub(super) plans: &'a [Plan],
}

/// The account of one leaf's pieces.
#[derive(Default)]
pub(super) struct LeafDone {
    pub(super) writes: u64,
    pub(super) bytes: u64,
    pub(super) failed: Vec<Piece>,
}

/// A run, and the number of its leaf among those of the batch.
type Run<'p> = (usize, &'p [Piece]);

impl<'a> Batch<'a> {
    /// Writes the sorted pieces of some leaves. `wide`: several cores may share the leaves.
    pub(super) fn write(&self, leaves: &[&[Piece]], wide: bool) -> Vec<LeafDone> {
        let copies = |pieces: &&[Piece]| pieces.first().is_some_and(|p| self.is_quick(p, 1));
        if wide && leaves.len() > 1 && leaves.iter().all(copies) {
            return tasks::map(leaves.to_vec(), |pieces| self.write_together(&[pieces]))
                .into_iter()
                .flatten()
                .collect();
        }
        self.write_together(leaves)
    }

    /// Whether a write there takes no time to speak of.
    fn is_quick(&self, piece: &Piece, len: usize) -> bool {
        let device = self.leaf(piece).and_then(|leaf| leaf.device());
        device.is_none_or(|device| matches!(device.way(piece.offset, len), Way::Here))
    }

    fn leaf(&self, piece: &Piece) -> Option<&'a Arc<Leaf>> {
        self.tree.leaf_at(piece.leaf as usize)
    }

    fn write_together(&self, leaves: &[&[Piece]]) -> Vec<LeafDone> {
        let mut done: Vec<LeafDone> = leaves.iter().map(|_| LeafDone::default()).collect();
        let runs = in_turns(leaves);
        let (mut flight, mut slow) = (LeafFlight::default(), false);
        for (number, (at, run)) in runs.iter().enumerate() {
            let Some(leaf) = run.first().and_then(|p| self.leaf(p)) else {
                // a leaf that the shapes of this tree name is in it; else its blocks are planned without it
                let pieces = run.iter().filter(|piece| !piece.optional);
                done.get_mut(*at).into_iter().for_each(|done| done.failed.extend(pieces.clone()));
                continue;
            };
            let len = run.iter().map(|p| p.len as usize).sum();
            let quick = !slow && run.first().is_some_and(|p| self.is_quick(p, len));
            // with a single one there is nothing else to be done meanwhile
            if quick || runs.len() == 1 || !self.begin(&mut flight, leaf, (number, run), len) {
                let begun = Instant::now();
                done.get_mut(*at).into_iter().for_each(|done| self.write_run(done, leaf, run));
                slow = slow || (begun.elapsed() >= SLOW && tasks::width() > 1);
                if slow {
                    flight.note_slow();
                }
            }
            while let Some(landed) = flight.ended() {
                self.landed(&runs, &landed, &mut done);
            }
        }
        while let Some(landed) = flight.next() {
            self.landed(&runs, &landed, &mut done);
        }
        done.iter_mut().for_each(|done| done.failed.sort_unstable_by_key(|piece| piece.offset));
        done
    }

    /// Hands a run to its leaf.
    fn begin(&self, flight: &mut LeafFlight, leaf: &Arc<Leaf>, (number, run): Run<'_>, len: usize) -> bool {
        let mut buffer = Buffer::take(len);
        let mut to = &mut *buffer;
        for piece in run {
            let bytes = self.bytes(piece);
            let (now, later) = to.split_at_mut(bytes.len().min(to.len()));
            now.copy_from_slice(bytes);
            to = later;
        }
        let offset = run.first().map_or(0, |p| p.offset);
        let class = (self.class, Direction::Write);
        flight.begin(leaf, class, offset, buffer, (number as u64, run.len() > 1))
    }

    /// Notes what became of a run.
    fn landed(&self, runs: &[Run<'_>], landed: &Landed, done: &mut [LeafDone]) {
        let Some((at, run)) = runs.get(landed.tag as usize) else {
            panic!("run {} of {} was written", landed.tag, runs.len());
        };
        let (Some(done), Some(leaf)) = (done.get_mut(*at), run.first().and_then(|p| self.leaf(p))) else { return };
        done.count(run);
        if landed.result.is_err() {
            self.write_pieces(done, leaf, run);
        }
    }

    /// Writes a run from where its bytes are.
    fn write_run(&self, done: &mut LeafDone, leaf: &Leaf, run: &[Piece]) {
        let slices: Vec<IoSlice<'_>> = run.iter().map(|p| IoSlice::new(self.bytes(p))).collect();
        done.count(run);
        if leaf.write(self.class, run.first().map_or(0, |p| p.offset), &slices).is_err() {
            self.write_pieces(done, leaf, run);
        }
    }

    /// Writes the pieces of a run that failed: perhaps it is one bad sector, and what can be saved is saved.
    fn write_pieces(&self, done: &mut LeafDone, leaf: &Leaf, run: &[Piece]) {
        for piece in run {
            done.writes += 1;
            let written = leaf.write(self.class, piece.offset, &[IoSlice::new(self.bytes(piece))]);
            if written.is_err() && !piece.optional {
                done.failed.push(*piece);
            }
        }
    }

    fn bytes(&self, piece: &Piece) -> &'a [u8] {
        let len = piece.len as usize;
        let bytes = match piece.source {
            Source::Block(at) => self.blocks.get(piece.block as usize).and_then(|b| b.data.get(at..at + len)),
            Source::Arena(at) => self.plans.get(usize::from(piece.part)).and_then(|plan| plan.arena.get(at..at + len)),
            Source::Zero => ZEROS.get(..len),
        };
        assert!(bytes.is_some(), "{piece:?} is not within what it was planned for");
        bytes.unwrap_or(&[])
    }
}

impl LeafDone {
    fn count(&mut self, run: &[Piece]) {
        self.writes += 1;
        self.bytes += run.iter().map(|p| u64::from(p.len)).sum::<u64>();
    }
}

/// The runs of all leaves, the first of each, then the second of each.
fn in_turns<'p>(leaves: &[&'p [Piece]]) -> Vec<Run<'p>> {
    let runs: Vec<Vec<&[Piece]>> = leaves.iter().map(|pieces| runs_of(pieces)).collect();
    let longest = runs.iter().map(Vec::len).max().unwrap_or(0);
    let nth = |n: usize| runs.iter().enumerate().filter_map(move |(at, runs)| Some((at, *runs.get(n)?)));
    (0..longest).flat_map(nth).collect()
}

/// Cuts the sorted pieces of a leaf into what goes out in one write each.
fn runs_of(pieces: &[Piece]) -> Vec<&[Piece]> {
    let limit = ZFS_VDEV_AGGREGATION_LIMIT.get();
    let (mut runs, mut rest) = (Vec::new(), pieces);
    while let Some(first) = rest.first() {
        let mut end = first.offset;
        let joins = |p: &&Piece| {
            let next = end.saturating_add(u64::from(p.len));
            let takes = p.offset == end && (next - first.offset <= limit || p.offset == first.offset);
            if takes {
                end = next;
            }
            takes
        };
        let count = rest.iter().take(PIECES_MAX).take_while(joins).count().max(1);
        let (run, behind) = rest.split_at(count);
        rest = behind;
        // zeros at the ends of a run join nothing
        let from = run.iter().take_while(|p| p.optional).count();
        let until = run.len() - run.iter().rev().take_while(|p| p.optional).count();
        runs.extend(run.get(from..until).filter(|run| !run.is_empty()));
    }
    runs
}
