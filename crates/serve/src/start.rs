//! A server that is started by a process that needs one, and outlives it.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::{Client, Error};

/// The time that a server has to answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// The interval at which it is asked.
const ASK_EVERY: Duration = Duration::from_millis(10);

/// Connects to the server of the state folder; this program is started as one (`zuse serve --on-demand`) if there is none. It has a session of its own, and `/` as its directory; what
/// it says goes to `server.log` in the state folder.
///
/// # Errors
/// As [`Client::connect`]; when it cannot be started, or does not answer in time.
pub fn start() -> Result<Client, Error> {
    if let Some(client) = Client::connect()? {
        return Ok(client);
    }
    let mut child = begin().map_err(Error::Connect)?;
    let begun = Instant::now();
    loop {
        if let Some(client) = Client::connect()? {
            return Ok(client);
        }
        let ended = child.try_wait().map_err(Error::Connect)?;
        // another process may have started one at the same time: that is being born, or has ended by now
        if ended.is_some() && !site::seat::is_taken() {
            return Err(Error::Connect(io::Error::other("a server was started, and ended (see server.log)")));
        }
        if begun.elapsed() > PATIENCE {
            return Err(Error::Connect(io::ErrorKind::TimedOut.into()));
        }
        std::thread::sleep(ASK_EVERY);
    }
}

fn begin() -> io::Result<Child> {
    let (folder, log) = site::seat::log()?;
    // this very program, though its file may have been replaced
    let mut command = Command::new("/proc/self/exe");
    command.arg0("zuse").args(["serve", "--on-demand", "--state"]).arg(folder).current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    // it keeps nothing open that this process was given: no lock, no end of a pipe
    close_fds::set_fds_cloexec(3, &[]);
    command.spawn()
}
