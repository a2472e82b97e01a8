//! The chain that commits write: records are laid out in blocks, and the blocks are then written to the devices (OpenZFS:
//! `zl_issuer_lock`, `zil_create`, `zil_lwb_write_close`, `zil_lwb_write_issue`).

use std::time::Duration;

use base::{Endian, Txg};
use dmu::Tx;
use ondisk::BlkPtr;
use ondisk::zil::{ZIL_CHAIN_SIZE, ZIL_MIN_BLKSZ, block_seq};
use vdev::{Flushes, Written};

use super::bursts::{Bursts, Plan};
use super::fill::{self, Filled, Filler};
use super::itx::{put, put_u64};
use super::stats::PlaceStats;
use super::{Itx, Placed, Zil};
use crate::Error;
use crate::claim::needs_replay;

/// Offsets in a block of the pointer to the next one, and of the number of bytes in use (OpenZFS: `zil_chain_t`).
const NEXT_AT: usize = 8;
const NUSED_AT: usize = 136;

/// The state that a committing leader works on; its lock serializes leaders, and is held over their I/O.
#[derive(Debug)]
pub(crate) struct Chain {
    /// The block that is filled next; `None` before a chain begins and after one is ended.
    tail: Option<Placed>,
    /// The last sequence number of a record.
    seq: u64,
    bursts: Bursts,
    /// The recent time of a write and its flush, and the number of callers that waited for it.
    pub(crate) latency: Duration,
    pub(crate) crowd: usize,
    /// True once the log is closed: no further chain is begun.
    pub(crate) closed: bool,
}

impl Chain {
    pub(crate) fn new(max_block: u64) -> Chain {
        Chain { tail: None, seq: 0, bursts: Bursts::new(max_block), latency: Duration::ZERO, crowd: 0, closed: false }
    }
}

/// Block pointers, each with the bytes to write there.
type Writes = Vec<(BlkPtr, Vec<u8>)>;

/// Allocated and linked blocks that are ready to be written.
pub(crate) struct Flight {
    writes: Writes,
    written: Written,
    /// Flushes that had failed before any of the blocks was written.
    before: Flushes,
}

/// Returns the identity of the block after the one with `identity`.
fn successor(mut identity: [u64; 4]) -> [u64; 4] {
    if let Some(seq) = identity.last_mut() {
        *seq = seq.wrapping_add(1);
    }
    identity
}

impl Zil {
    fn unusable(&self, what: &'static str) -> Error {
        Error::Unusable { objset: self.device.objset(), what }
    }

    /// Lays out the records that are younger than the last synced txg in blocks of the chain. Returns `None` if all of them are
    /// on disk.
    pub(crate) fn prepare(&self, chain: &mut Chain, mut itxs: Vec<(Txg, Itx)>) -> Result<Option<Flight>, Error> {
        let on_disk = |itxs: &mut Vec<(Txg, Itx)>| {
            let synced = self.device.synced();
            itxs.retain(|(txg, _)| *txg > synced);
            itxs.is_empty()
        };
        if on_disk(&mut itxs) {
            return Ok(None);
        }
        let first = match chain.tail {
            Some(tail) => tail,
            None => {
                // waits for a txg, after which most of the records are on disk
                let first = self.begin(chain)?;
                if on_disk(&mut itxs) {
                    return Ok(None);
                }
                first
            }
        };
        let source = self.source.read().as_ref().and_then(std::sync::Weak::upgrade);
        let burst = Filler::burst(&itxs);
        let before = self.device.flushes();
        let mut filler = Filler::new(source.as_deref(), &self.stats, &chain.bursts, self.max_block, chain.seq);
        let blocks = filler.fill(first.bp.lsize(), itxs);
        let (seq, mut written, owed) = (filler.seq, filler.written, filler.owed);
        chain.seq = seq;
        chain.bursts.done(burst.0, burst.1);
        self.owe(owed);
        if blocks.is_empty() {
            return Ok(None);
        }
        let writes = self.link(chain, first, blocks, &mut written)?;
        Ok(Some(Flight { writes, written, before }))
    }

    /// Brings blocks to stable storage.
    pub(crate) fn fly(&self, chain: &mut Chain, flight: Flight) -> Result<(), Error> {
        let started = self.device.env().instant();
        self.device.write(flight.writes)?;
        self.device.flush(&flight.written, &flight.before)?;
        chain.latency = (chain.latency * 7 + started.elapsed()) / 8;
        self.lwbs.lock().written();
        Ok(())
    }

    /// Ends the chain: the next txg frees it.
    pub(crate) fn end(&self, chain: &mut Chain) {
        chain.tail = None;
        self.lwbs.lock().end();
    }

    /// Ends the chain: the next txg frees it; the next commit begins another. Waits for a commit that is in flight.
    pub fn rest(&self) {
        self.end(&mut self.chain.lock());
    }

    /// Ends the chain: the next txg frees it, and no other begins. Waits for a commit that is in flight. Later commits wait for
    /// txgs.
    pub fn close(&self) {
        let mut chain = self.chain.lock();
        chain.closed = true;
        self.end(&mut chain);
    }

    /// Allocates the first block of a chain, and waits until the header points to it.
    fn begin(&self, chain: &mut Chain) -> Result<Placed, Error> {
        if chain.closed {
            return Err(self.unusable("the log is closed"));
        }
        if self.device.is_suspended() {
            return Err(self.unusable("it is suspended"));
        }
        let (is_free, frees_itself) = {
            let lwbs = self.lwbs.lock();
            (lwbs.is_empty(), lwbs.has_header())
        };
        if !is_free {
            return Err(self.unusable("the previous chain is not freed yet"));
        }
        let header = self.device.header()?;
        if needs_replay(&header) {
            return Err(self.unusable("the log is not replayed yet"));
        }
        let left_behind = if frees_itself || header.log.is_hole() { Vec::new() } else { self.device.left_behind()? };
        let env = self.device.env();
        let identity = [env.random_u64(), env.random_u64(), self.device.objset().0, 1];
        let txg = {
            let tx = self.device.open()?;
            let first = self.device.allocate(&tx, ZIL_MIN_BLKSZ, identity)?;
            self.lwbs.lock().begin(tx.txg(), &first, left_behind);
            chain.tail = Some(first);
            self.device.created(&tx);
            tx.txg()
        };
        self.device.wait_synced(txg)?;
        chain.tail.ok_or_else(|| self.unusable("the chain was ended while it began"))
    }

    /// Links filled blocks into the chain.
    fn link(
        &self,
        chain: &mut Chain,
        first: Placed,
        blocks: Vec<Filled>,
        written: &mut Written,
    ) -> Result<Writes, Error> {
        let (places, tail) = self.places(chain, first, &blocks)?;
        let seqs = places.iter().chain([&tail]).map(|place| block_seq(&place.bp));
        let follow = seqs.clone().zip(seqs.skip(1)).all(|(block, next)| next == block.wrapping_add(1));
        if !follow || places.len() != blocks.len() {
            // a replay would end there
            self.end(chain);
            return Err(self.unusable("bug: its blocks do not follow each other"));
        }
        chain.tail = Some(tail);
        let nexts = places.iter().skip(1).chain([&tail]);
        let mut writes = Vec::with_capacity(blocks.len());
        for ((block, place), next) in blocks.into_iter().zip(&places).zip(nexts) {
            fill::note(written, &place.bp);
            writes.push((place.bp, self.seal(block.bytes, place, &next.bp)));
        }
        Ok(writes)
    }

    /// Allocates the blocks: the first already is, the others get the size of their content; and one more as the new tail.
    fn places(&self, chain: &Chain, first: Placed, blocks: &[Filled]) -> Result<(Vec<Placed>, Placed), Error> {
        let tx = self.device.open()?;
        let mut places = vec![first];
        let tail = self.allocate(&tx, &mut places, blocks, chain.bursts.predict());
        let mut lwbs = self.lwbs.lock();
        match tail {
            Ok(tail) => {
                places.iter().skip(1).chain([&tail]).for_each(|place| lwbs.push(tx.txg(), place));
                lwbs.writing(blocks.iter().map(|block| block.last));
                Ok((places, tail))
            }
            Err(error) => {
                lwbs.give_up(tx.txg(), places.get(1..).unwrap_or_default());
                Err(error)
            }
        }
    }

    fn allocate(&self, tx: &Tx, places: &mut Vec<Placed>, blocks: &[Filled], next: Plan) -> Result<Placed, Error> {
        let mut identity = places.last().map_or([0; 4], |first| first.bp.cksum());
        for block in blocks.iter().skip(1) {
            identity = successor(identity);
            let size = (block.bytes.len() as u64).next_multiple_of(ZIL_MIN_BLKSZ);
            places.push(self.device.allocate(tx, size, identity)?);
        }
        identity = successor(identity);
        let of = |size| self.device.allocate(tx, size, identity);
        of(next.best).or_else(|_| of(next.min)).or_else(|_| of(ZIL_MIN_BLKSZ))
    }

    /// Writes the chain structure in front of the records.
    fn seal(&self, mut bytes: Vec<u8>, place: &Placed, next: &BlkPtr) -> Vec<u8> {
        let used = bytes.len().max(ZIL_CHAIN_SIZE) as u64;
        bytes.resize(used.next_multiple_of(ZIL_MIN_BLKSZ) as usize, 0);
        put(&mut bytes, NEXT_AT, &next.encode(Endian::Little));
        put_u64(&mut bytes, NUSED_AT, used);
        let PlaceStats { count, bytes: records, write, alloc } =
            if place.slog { &self.stats.slog } else { &self.stats.normal };
        count.add(1);
        records.add(used);
        write.add(bytes.len() as u64);
        alloc.add(place.bp.lsize());
        bytes
    }
}
