//! A tree of a pool as a PAX archive, past damage.

use std::collections::HashMap;
use std::io::{self, Write};

use base::ObjectId;
use tar::EntryType;
use zpl::{Kind, Node, PosixAcl, Time};

use crate::pax::{Archive, Entry};
use crate::report::Report;
use crate::salvage::{Chunk, read_past_damage};
use crate::walk::{Go, Step, walk};

/// Adds trees to an archive.
pub struct Archiver<'a, W: Write> {
    archive: Archive<W>,
    report: &'a mut dyn Report,
    links: HashMap<ObjectId, Vec<u8>>,
    damaged: u64,
}

impl<'a, W: Write> Archiver<'a, W> {
    /// An archive that is written to `out`; buffer it.
    pub fn new(out: W, report: &'a mut dyn Report) -> Self {
        Archiver { archive: Archive::new(out), report, links: HashMap::new(), damaged: 0 }
    }

    /// Adds `from` and all below it, as `prefix` (empty for the names as they are).
    ///
    /// # Errors
    /// What the output says; damage goes to the report.
    pub fn add_tree(&mut self, from: Node, prefix: &[u8]) -> io::Result<()> {
        self.links.clear();
        walk(from, true, &mut |step| {
            match step {
                Step::Enter { path, node } => self.add(&join(prefix, path), node)?,
                Step::Leave { .. } => {}
                Step::Lost { path, why } => self.lose(path, &why.to_string()),
                Step::Refused { path, why } => self.lose(path, why),
            }
            Ok(Go::In)
        })
    }

    /// Ends the archive; gives the number of files that are incomplete or missing.
    ///
    /// # Errors
    /// What the output says.
    pub fn finish(self) -> io::Result<u64> {
        self.archive.finish()?;
        Ok(self.damaged)
    }

    fn lose(&mut self, path: &[u8], why: &str) {
        self.damaged += 1;
        self.report.lost(path, why);
    }

    fn add(&mut self, path: &[u8], node: &Node) -> io::Result<()> {
        self.report.file(path);
        let mut entry = self.entry(path, node);
        if node.attrs().links > 1 && node.kind() != Kind::Directory {
            if let Some(first) = self.links.get(&node.id()) {
                entry.link = first.clone();
                entry.xattrs.clear();
                return self.archive.add(EntryType::Link, &entry);
            }
            self.links.insert(node.id(), path.to_vec());
        }
        match node.kind() {
            Kind::File => self.file(&entry, node),
            Kind::Directory => {
                entry.path.push(b'/');
                self.archive.add(EntryType::Directory, &entry)
            }
            Kind::Symlink => match node.target() {
                Ok(target) => {
                    entry.link = target;
                    self.archive.add(EntryType::Symlink, &entry)
                }
                Err(why) => {
                    self.lose(path, &why.to_string());
                    Ok(())
                }
            },
            Kind::CharDevice => self.archive.add(EntryType::Char, &entry),
            Kind::BlockDevice => self.archive.add(EntryType::Block, &entry),
            Kind::Fifo => self.archive.add(EntryType::Fifo, &entry),
            Kind::Socket | Kind::Other(_) => {
                self.report.not_kept(path, "an archive cannot hold a socket");
                Ok(())
            }
        }
    }

    fn file(&mut self, entry: &Entry, node: &Node) -> io::Result<()> {
        let segments = match segments(node) {
            Ok(segments) => segments,
            // where the holes cannot be told, the file is written in full
            Err(_) => vec![(0, node.size())],
        };
        let total = self.archive.begin_file(entry, node.size(), &segments)?;
        let mut out = Filler { archive: &mut self.archive, segments: segments.iter(), at: 0, end: 0 };
        let (report, mut damaged) = (&mut *self.report, false);
        read_past_damage(node, &mut |chunk| match chunk {
            Chunk::Data { offset, bytes } => {
                report.bytes(bytes.len() as u64);
                out.put(offset, bytes)
            }
            Chunk::Lost { range, why } => {
                damaged = true;
                report.lost(
                    &entry.path,
                    &format!("bytes {}-{}: {why} (zeros stand in their place)", range.start, range.end - 1),
                );
                Ok(())
            }
        })?;
        out.rest()?;
        self.damaged += u64::from(damaged);
        self.archive.finish_file(total)
    }

    fn entry(&mut self, path: &[u8], node: &Node) -> Entry {
        let attrs = node.attrs();
        let time = |t: Time| (t.sec, t.nsec);
        let mut entry = Entry {
            path: path.to_vec(),
            mode: attrs.mode & 0o7777,
            uid: attrs.uid().into(),
            gid: attrs.gid().into(),
            mtime: time(attrs.mtime),
            atime: Some(time(attrs.atime)),
            ctime: Some(time(attrs.ctime)),
            device: attrs.device().unwrap_or((0, 0)),
            ..Entry::default()
        };
        let xattrs = node.xattrs().unwrap_or_else(|why| {
            self.lose(path, &format!("extended attributes: {why}"));
            Vec::new()
        });
        for (name, value) in xattrs {
            let mut text = || match PosixAcl::decode(&value) {
                Ok(acl) => Some(acl.to_string().replace('\n', ",").trim_matches(',').to_owned()),
                Err(why) => {
                    self.lose(path, &why.to_string());
                    None
                }
            };
            if name == PosixAcl::ACCESS.as_bytes() {
                entry.acls.0 = text();
            } else if name == PosixAcl::DEFAULT.as_bytes() {
                entry.acls.1 = text();
            } else {
                entry.xattrs.push((name, value));
            }
        }
        entry
    }
}

/// Writes the stored ranges of a file in order, with zeros for what is lost.
struct Filler<'a, W: Write> {
    archive: &'a mut Archive<W>,
    segments: std::slice::Iter<'a, (u64, u64)>,
    /// the next byte of the file to be written, and the end of the range that it is in
    at: u64,
    end: u64,
}

impl<W: Write> Filler<'_, W> {
    /// Writes `bytes` of the file from `offset`; what of the ranges lies before becomes zeros.
    fn put(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.zeros_until(offset)?;
        let mut bytes = bytes;
        while !bytes.is_empty() {
            if self.at == self.end && !self.next_segment() {
                return Ok(());
            }
            let here = offset_into(bytes, self.end - self.at);
            self.archive.write(here)?;
            self.at += here.len() as u64;
            bytes = bytes.get(here.len()..).unwrap_or(&[]);
        }
        Ok(())
    }

    fn rest(&mut self) -> io::Result<()> {
        self.zeros_until(u64::MAX)
    }

    fn zeros_until(&mut self, offset: u64) -> io::Result<()> {
        while self.at < offset {
            if self.at == self.end && !self.next_segment() {
                return Ok(());
            }
            let zeros = [0; 4096];
            let len = (self.end.min(offset).saturating_sub(self.at)).min(zeros.len() as u64);
            if len == 0 {
                return Ok(());
            }
            self.archive.write(zeros.get(..len as usize).unwrap_or(&[]))?;
            self.at += len;
        }
        Ok(())
    }

    fn next_segment(&mut self) -> bool {
        let Some((start, len)) = self.segments.next() else { return false };
        self.at = *start;
        self.end = start + len;
        true
    }
}

fn offset_into(bytes: &[u8], room: u64) -> &[u8] {
    let len = usize::try_from(room).unwrap_or(usize::MAX).min(bytes.len());
    bytes.get(..len).unwrap_or(bytes)
}

/// The stored ranges of a file: start and length.
fn segments(node: &Node) -> Result<Vec<(u64, u64)>, zpl::Error> {
    node.data_segments().map(|s| s.map(|r| (r.start, r.end - r.start))).collect()
}

fn join(prefix: &[u8], path: &[u8]) -> Vec<u8> {
    match (prefix, path) {
        (b"", b"") => b".".to_vec(),
        (b"", path) => path.to_vec(),
        (prefix, b"") => prefix.to_vec(),
        (prefix, path) => [prefix, b"/", path].concat(),
    }
}
