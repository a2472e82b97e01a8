//! Requests of `control`, made by a client.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use base::Errno;
use control::{CancelToken, Failed, Ioc};
use nvlist::NvList;

use crate::connection::{Connection, Given, Work};
use crate::files::{Direction, Stream};
use crate::message::{Answer, BadBody, Call, wipe};

/// Decodes a request.
pub(crate) fn prepare(connection: &Arc<Connection>, body: &[u8], descriptors: Vec<OwnedFd>) -> Result<Work, BadBody> {
    let call = Call::decode(body, connection.bounds())?;
    let connection = connection.clone();
    Ok(Box::new(move |token| make(&connection, call, Given::new(descriptors), token)))
}

fn make(connection: &Connection, mut call: Call, given: Given, token: &CancelToken) -> Answer {
    let opened = match File::open(connection, call.ioc, &mut call.input, given, token) {
        Ok(opened) => opened,
        Err(e) => return Answer::failed(Errno::of_io(&e, Errno::EBADF), format!("the file for the stream: {e}")),
    };
    let done = connection.session().call_until(call.ioc, &call.name, &call.input, token);
    drop(opened);
    wipe(&mut call.input);
    match done {
        Ok(out) => Answer::done(out),
        Err(Failed { errno, out, error }) => Answer { errno, error: error.to_string(), out: *out },
    }
}

/// A file that is open for a request.
struct File<'a> {
    connection: &'a Connection,
    number: i32,
}

impl Drop for File<'_> {
    fn drop(&mut self) {
        self.connection.session().caller().files.close(self.number);
    }
}

impl<'a> File<'a> {
    /// Opens the descriptor that a request names for it, under a number that is its own in the session: several requests use files at once.
    fn open(
        connection: &'a Connection,
        ioc: Ioc,
        input: &mut NvList,
        mut given: Given,
        token: &CancelToken,
    ) -> std::io::Result<Option<File<'a>>> {
        let (key, direction) = match ioc {
            Ioc::SendNew | Ioc::Diff => ("fd", Direction::Out),
            Ioc::RecvNew => ("input_fd", Direction::In),
            _ => return Ok(None),
        };
        let Some(place) = input.get_i32(key) else { return Ok(None) };
        let number = connection.new_file();
        // the place may be the number of another request's file
        input.insert(key, number);
        let Some(descriptor) = given.take(place) else { return Ok(None) };
        let stream = Box::new(Stream::new(descriptor, direction, token)?);
        let files = &connection.session().caller().files;
        match direction {
            Direction::In => files.input(number, stream, Arc::default()),
            Direction::Out => files.output(number, stream, Arc::default()),
        }
        Ok(Some(File { connection, number }))
    }
}
