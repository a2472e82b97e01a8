//! A device behind its queue, for those who know only devices.

use std::io::{self, IoSlice};
use std::sync::Arc;

use super::{Direction, IoClass, Request};
use crate::device::{Device, DeviceKind, Discards};
use crate::{Error, Leaf};

/// The device of a leaf; its reads and writes are sync requests of the queue.
#[derive(Debug)]
pub struct Queued<'a> {
    device: Arc<dyn Device>,
    leaf: &'a Leaf,
}

impl<'a> Queued<'a> {
    pub(crate) fn new(device: Arc<dyn Device>, leaf: &'a Leaf) -> Queued<'a> {
        Queued { device, leaf }
    }

    fn write(&self, offset: u64, len: usize, call: impl FnOnce(&dyn Device) -> io::Result<()>) -> io::Result<()> {
        let (class, direction) = (IoClass::SyncWrite, Direction::Write);
        self.leaf.run(&self.device, Request { class, direction, offset, len: len as u64, aggregated: false }, call)
    }
}

impl Device for Queued<'_> {
    fn size(&self) -> u64 {
        self.device.size()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let (class, direction, len) = (IoClass::SyncRead, Direction::Read, buf.len() as u64);
        let request = Request { class, direction, offset, len, aggregated: false };
        self.leaf.run(&self.device, request, |device| device.read_at(offset, buf))
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.write(offset, data.len(), |device| device.write_at(offset, data))
    }

    fn write_vectored_at(&self, offset: u64, data: &[IoSlice<'_>]) -> io::Result<()> {
        let len = data.iter().map(|piece| piece.len()).sum();
        self.write(offset, len, |device| device.write_vectored_at(offset, data))
    }

    fn flush(&self) -> io::Result<()> {
        self.device.flush()
    }

    fn write_through_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.write(offset, data.len(), |device| device.write_through_at(offset, data))
    }

    fn forget(&self, offset: u64, len: u64) -> io::Result<()> {
        self.device.forget(offset, len)
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        let (class, direction) = (IoClass::Trim, Direction::Write);
        let request = Request { class, direction, offset, len, aggregated: false };
        self.leaf.run(&self.device, request, |device| device.discard(offset, len))
    }

    fn discard_securely(&self, offset: u64, len: u64) -> io::Result<()> {
        let (class, direction) = (IoClass::Trim, Direction::Write);
        let request = Request { class, direction, offset, len, aggregated: false };
        self.leaf.run(&self.device, request, |device| device.discard_securely(offset, len))
    }

    fn discards(&self) -> Discards {
        self.device.discards()
    }

    fn refresh_size(&self) -> io::Result<u64> {
        self.device.refresh_size()
    }

    fn is_gone(&self) -> bool {
        self.device.is_gone()
    }

    fn reopen(&self) -> Result<Arc<dyn Device>, Error> {
        self.device.reopen()
    }

    fn is_writable(&self) -> bool {
        self.device.is_writable()
    }

    fn kind(&self) -> DeviceKind {
        self.device.kind()
    }

    fn name(&self) -> String {
        self.device.name()
    }
}
