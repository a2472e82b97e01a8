//! Sources of files: a tree of the host, an archive, a tree of a pool.

use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use base::Errno;
use zpl::live::Zfs;
use zpl::{Kind, Node};

use super::{CopyIn, Streaming, ends_all};
use crate::Error;
use crate::host::{Contents, HostStep, HostTree, data_segments};
use crate::item::Item;
use crate::salvage::{Chunk, read_past_damage_from};
use crate::untar::{Entered, TarData, read_tar};
use crate::walk::{Go, Step, walk};

/// Bytes of a large file that are read and written at a time: several records, whatever their size.
const PIECE: usize = 4 << 20;
/// Files up to this size are read as a whole.
const WHOLE_MAX: u64 = 128 << 10;

impl CopyIn<'_> {
    /// Puts `from`, a directory of the host with all below it, or a single file, as `to`; the empty path is the directory that the copy
    /// puts files into.
    ///
    /// # Errors
    /// If `from` is not there; as [`CopyIn::put`].
    pub fn host(&mut self, from: &Path, to: &[u8]) -> Result<(), Error> {
        let mut buf = Vec::new();
        for (path, step) in HostTree::open(from).map_err(Error::host(from))? {
            let path = join(to, &path);
            match step {
                HostStep::Leave => self.leave(&path)?,
                HostStep::Lost(e) => self.failed(&path, &e.to_string()),
                HostStep::Enter(item, Contents::None) => self.put(&path, *item, Vec::new())?,
                HostStep::Enter(item, Contents::Whole(data)) => self.put(&path, *item, data)?,
                HostStep::Enter(item, Contents::Open(file)) => {
                    buf.resize(PIECE, 0);
                    self.host_file(&path, *item, &file, &mut buf)?;
                }
            }
        }
        Ok(())
    }

    /// Streams a large or sparse file of the host.
    fn host_file(&mut self, path: &[u8], item: Item, file: &std::fs::File, buf: &mut [u8]) -> Result<(), Error> {
        let size = item.size;
        let Some(mut to) = self.begin(path, item)? else { return Ok(()) };
        let segments = match size {
            // it does not say where it ends
            0 => vec![(0, u64::MAX)],
            size => data_segments(file, size).unwrap_or_else(|_| vec![(0, size)]),
        };
        'file: for (mut at, end) in segments {
            while at < end {
                let want = usize::try_from(end - at).unwrap_or(usize::MAX).min(buf.len());
                let part = buf.get_mut(..want).unwrap_or_default();
                match read_full(file, part, at) {
                    // it is shorter than it said, or has become so
                    Ok(0) => {
                        to.item.size = at;
                        break 'file;
                    }
                    Ok(n) => {
                        self.write(&mut to, at, part.get(..n).unwrap_or_default())?;
                        at += n as u64;
                    }
                    Err(e) => {
                        self.spoil(&mut to, &format!("at byte {at}: {e}"));
                        to.item.size = to.end;
                        break 'file;
                    }
                }
            }
        }
        self.end(to)
    }

    /// Puts what an archive holds below `to`.
    ///
    /// # Errors
    /// What the input says; as [`CopyIn::put`].
    pub fn tar(&mut self, input: impl Read, to: &[u8]) -> Result<(), Error> {
        let mut buf = vec![0; PIECE];
        // as others take archives
        self.displaces = true;
        let read = read_tar(input, &mut |path, entered, data| {
            let path = join(to, path);
            match entered {
                Entered::Item(item) => self.tar_file(&path, *item, data, &mut buf),
                Entered::Link(first) => self.link(&path, &join(to, &first)),
                Entered::Foreign(why) => {
                    self.failed(&path, why);
                    Ok(())
                }
            }
        });
        // what waits is from the archive still
        let flushed = self.flush();
        self.displaces = false;
        read.and(flushed)
    }

    fn tar_file(&mut self, path: &[u8], item: Item, data: &mut TarData<'_>, buf: &mut [u8]) -> Result<(), Error> {
        if let Some(why) = &item.trouble {
            self.failed(path, why);
        }
        if item.kind != Kind::File || item.size == 0 {
            return self.put(path, item, Vec::new());
        }
        let first = data.read(buf)?;
        if let Some((0, len)) = first
            && len as u64 == item.size
            && item.size <= WHOLE_MAX
        {
            return self.put(path, item, buf.get(..len).unwrap_or_default().to_vec());
        }
        let Some(mut to) = self.begin(path, item)? else { return Ok(()) };
        let mut piece = first;
        while let Some((offset, len)) = piece {
            self.write(&mut to, offset, buf.get(..len).unwrap_or_default())?;
            piece = match data.read(buf) {
                Ok(piece) => piece,
                Err(e) => {
                    self.give_up(&mut to);
                    return Err(e.into());
                }
            };
        }
        self.end(to)
    }

    /// Puts a file of the same pool, with all below it, as `to`, and shares blocks with it where that can be. `from` is read as it was synced
    /// last; `live` is its file system.
    ///
    /// # Errors
    /// As [`CopyIn::put`].
    pub fn share(&mut self, live: &Zfs, from: Node, to: &[u8]) -> Result<(), Error> {
        self.shared = Some(live.clone());
        let done = self.node(from, to);
        self.shared = None;
        done
    }

    /// Puts a file of a pool, with all below it, as `to`.
    ///
    /// # Errors
    /// As [`CopyIn::put`].
    pub fn node(&mut self, from: Node, to: &[u8]) -> Result<(), Error> {
        walk(from, true, &mut |step| {
            match step {
                Step::Enter { path, node } => self.node_file(&join(to, path), node)?,
                Step::Leave { path, .. } => self.leave(&join(to, path))?,
                Step::Lost { path, why } => self.failed(&join(to, path), &why.to_string()),
                Step::Refused { path, why } => self.failed(&join(to, path), why),
            }
            Ok(Go::In)
        })
    }

    fn node_file(&mut self, path: &[u8], node: &Node) -> Result<(), Error> {
        let (mut item, trouble) = Item::of_node(node);
        if let Some(why) = trouble {
            self.failed(path, &why.to_string());
            if item.kind == Kind::Symlink && item.target.is_empty() {
                return Ok(());
            }
            item.trouble = Some(why.to_string());
        }
        let size = item.size;
        if size <= WHOLE_MAX && !(size > 0 && is_sparse(node)) {
            let mut data = vec![0; size as usize];
            if size == 0 || node.read(0, &mut data).is_ok_and(|n| n as u64 == size) {
                return self.put(path, item, data);
            }
        }
        let Some(mut to) = self.begin(path, item)? else { return Ok(()) };
        if let Some(live) = self.shared.clone().filter(|_| size > 0) {
            let copied = self.zfs.copy_range_from(&self.cred, &live, (node.id(), 0), (to.id, 0), size);
            if copied.as_ref().is_err_and(is_damage) {
                let done = self.zfs.getattr(to.id).map_err(Error::at(path))?.size;
                self.shared_until(&mut to, node, done);
                return self.read_from(to, node, done);
            }
            match self.tolerate(path, copied) {
                Ok(Some(bytes)) => self.shared_until(&mut to, node, bytes),
                Ok(None) => to.spoiled = true,
                Err(e) => {
                    self.give_up(&mut to);
                    return Err(e);
                }
            }
            // what was not copied is not filled up with zeros
            to.item.size = to.end;
            return self.end(to);
        }
        self.read_from(to, node, 0)
    }

    /// Counts the first `end` bytes of a file as done.
    fn shared_until(&mut self, to: &mut Streaming, node: &Node, end: u64) {
        to.end = end;
        to.bytes = data_bytes(node, end);
        self.report.bytes(to.bytes);
    }

    /// Copies what a file has from byte `start` on, past damage, and ends it.
    fn read_from(&mut self, mut to: Streaming, node: &Node, start: u64) -> Result<(), Error> {
        let mut ended = Ok(());
        let mut lost = Vec::new();
        let copied = read_past_damage_from(node, start, &mut |chunk| match chunk {
            Chunk::Data { offset, bytes } => self.write(&mut to, offset, bytes).map_err(|e| {
                ended = Err(e);
                io::Error::other("the destination fails")
            }),
            Chunk::Lost { range, why } => {
                lost.push(format!("bytes {}-{}: {why}", range.start, range.end - 1));
                Ok(())
            }
        });
        ended?;
        copied?;
        if !lost.is_empty() {
            self.spoil(&mut to, &lost.join("; "));
        }
        self.end(to)
    }
}

/// Returns whether an error is caused by unreadable blocks.
fn is_damage(e: &zpl::Error) -> bool {
    matches!(e.errno(), Errno::EIO | Errno::ECKSUM) && !ends_all(e)
}

/// How much of the first `size` bytes of a file is no hole.
fn data_bytes(node: &Node, size: u64) -> u64 {
    let (mut at, mut data) = (0, 0);
    while at < size {
        let Ok(Some(start)) = node.next_data(at) else { break };
        let end = node.next_hole(start).unwrap_or(size).min(size);
        data += end.saturating_sub(start);
        at = end.max(start + 1);
    }
    data
}

/// Returns whether a file has a hole before its end.
fn is_sparse(node: &Node) -> bool {
    node.next_hole(0).is_ok_and(|hole| hole < node.size())
}

/// Reads at `offset` until the buffer is full or the file ends.
fn read_full(file: &std::fs::File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

fn join(base: &[u8], path: &[u8]) -> Vec<u8> {
    match (base, path) {
        (b"", path) => path.to_vec(),
        (base, b"") => base.to_vec(),
        (base, path) => [base, b"/", path].concat(),
    }
}
