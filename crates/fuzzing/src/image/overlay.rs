//! A device with changes on top of shared bytes.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use vdev::Device;

const PAGE: usize = 4096;

/// Shared bytes, with changed pages on top.
#[derive(Debug, Clone)]
pub(crate) struct Overlay {
    base: Arc<Vec<u8>>,
    pages: BTreeMap<usize, Vec<u8>>,
}

impl Overlay {
    /// An overlay over `base`, whose length is a multiple of 4 KiB.
    pub(crate) fn new(base: Arc<Vec<u8>>) -> Overlay {
        Overlay { base, pages: BTreeMap::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.base.len()
    }

    fn page(&self, n: usize) -> &[u8] {
        self.pages.get(&n).map_or(&self.base[n * PAGE..(n + 1) * PAGE], Vec::as_slice)
    }

    /// Fills `buf`; the range must be within the device.
    pub(crate) fn read(&self, mut at: usize, mut buf: &mut [u8]) {
        while !buf.is_empty() {
            let from = &self.page(at / PAGE)[at % PAGE..];
            let n = from.len().min(buf.len());
            let (front, rest) = buf.split_at_mut(n);
            front.copy_from_slice(&from[..n]);
            (buf, at) = (rest, at + n);
        }
    }

    pub(crate) fn get(&self, at: usize, len: usize) -> Vec<u8> {
        let mut buf = vec![0; len];
        self.read(at, &mut buf);
        buf
    }

    /// Changes bytes; the range must be within the device.
    pub(crate) fn put(&mut self, mut at: usize, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let base = &self.base;
            let page = self.pages.entry(at / PAGE);
            let page = page.or_insert_with_key(|n| base[n * PAGE..(n + 1) * PAGE].to_vec());
            let to = &mut page[at % PAGE..];
            let n = to.len().min(bytes.len());
            to[..n].copy_from_slice(&bytes[..n]);
            (bytes, at) = (&bytes[n..], at + n);
        }
    }
}

impl Device for Overlay {
    fn size(&self) -> u64 {
        self.base.len() as u64
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        match offset.checked_add(buf.len() as u64) {
            Some(end) if end <= self.size() => {
                self.read(offset as usize, buf);
                Ok(())
            }
            _ => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "beyond the end of the device")),
        }
    }

    fn name(&self) -> String {
        "overlay".to_owned()
    }
}
