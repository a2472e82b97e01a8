//! Tells a thread that waits for descriptors to end.

use std::io::{self, PipeReader, PipeWriter, Write};
use std::os::fd::{AsFd, BorrowedFd};

/// Ends a server, from another thread. Its descriptor can be read once it was told; the server polls it with its others.
#[derive(Debug)]
pub struct Stop {
    reader: PipeReader,
    writer: PipeWriter,
}

impl Stop {
    /// One that has not been told.
    ///
    /// # Errors
    /// What the system says.
    pub fn new() -> io::Result<Stop> {
        let (reader, writer) = io::pipe()?;
        Ok(Stop { reader, writer })
    }

    /// Ends the server in order.
    pub fn stop(&self) {
        // a pipe that is full has told it already
        let _told = (&self.writer).write(&[0]);
    }
}

impl AsFd for Stop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }
}
