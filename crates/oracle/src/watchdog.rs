//! A time limit for tools that may hang.
//!
//! A tool runs in its own process group. At the time limit the whole group is killed, so that its child processes do not keep its pipes
//! open; the reader then sees the end of the pipes, and learns that the limit was reached.
#![expect(clippy::disallowed_methods, reason = "a test that can have no thread may panic")]

use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

/// The time limit: many times the duration of the slowest call on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

/// A running tool, which is killed at its time limit or when this is dropped.
struct Watched {
    child: Child,
    group: Pid,
    /// Dropped when the tool has ended; the watchdog thread then ends too, and reports whether it had to kill.
    ended: Option<Sender<()>>,
    dog: Option<JoinHandle<bool>>,
    patience: Duration,
}

impl Watched {
    /// Starts a tool without input; its outputs are for [`Watched::pipes`].
    fn start(mut command: Command, patience: Duration) -> io::Result<Watched> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.process_group(0).spawn()?;
        let group = Pid::from_child(&child);
        let (ended, watch) = channel();
        let dog = thread::spawn(move || {
            // the tool is not reaped before this thread is joined, so its process id is not reused
            let overdue = watch.recv_timeout(patience) == Err(RecvTimeoutError::Timeout);
            overdue && kill_process_group(group, Signal::KILL).is_ok()
        });
        Ok(Watched { child, group, ended: Some(ended), dog: Some(dog), patience })
    }

    /// Its standard output and standard error; may be taken once.
    fn pipes(&mut self) -> io::Result<(ChildStdout, ChildStderr)> {
        let pipes = self.child.stdout.take().zip(self.child.stderr.take());
        pipes.ok_or_else(|| io::Error::other("the pipes were taken before"))
    }

    /// Kills it now.
    fn kill(&self) -> io::Result<()> {
        kill_process_group(self.group, Signal::KILL).map_err(io::Error::from)
    }

    /// Waits for it to exit. [`io::ErrorKind::TimedOut`] if the watchdog killed it.
    fn wait(mut self) -> io::Result<ExitStatus> {
        waitid(WaitId::Pid(self.group), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)?;
        if self.is_bitten() {
            let overdue = format!("no end after {} s: killed", self.patience.as_secs());
            return Err(io::Error::new(io::ErrorKind::TimedOut, overdue));
        }
        self.child.wait()
    }

    /// Stops the watchdog thread; true if it had to kill.
    fn is_bitten(&mut self) -> bool {
        self.ended = None;
        self.dog.take().is_some_and(|dog| dog.join().unwrap_or(false))
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            // the reader failed; that the tool is already gone is fine
            let _ = self.kill();
            let _ = self.child.wait();
        }
    }
}

/// Runs a tool to completion, like [`Command::output`].
pub(crate) fn output(command: Command, patience: Duration) -> io::Result<Output> {
    let mut tool = Watched::start(command, patience)?;
    let (mut out, err) = tool.pipes()?;
    let messages = collect(err);
    let mut stdout = Vec::new();
    out.read_to_end(&mut stdout)?;
    let stderr = collected(messages)?;
    Ok(Output { status: tool.wait()?, stdout, stderr })
}

/// Reads a pipe to its end on another thread.
fn collect(mut pipe: impl Read + Send + 'static) -> JoinHandle<io::Result<Vec<u8>>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).map(|_| bytes)
    })
}

/// The bytes that [`collect`] has read.
fn collected(reader: JoinHandle<io::Result<Vec<u8>>>) -> io::Result<Vec<u8>> {
    reader.join().map_err(|_| io::Error::other("the reader of a tool's output"))?
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn what_ends_in_time_is_as_it_is() {
        let out = output(shell("echo out; echo err >&2; exit 3"), PATIENCE).expect("it ran");
        assert_eq!((out.status.code(), out.stdout, out.stderr), (Some(3), b"out\n".to_vec(), b"err\n".to_vec()));
    }

    #[test]
    fn what_hangs_is_killed_with_its_children() {
        let began = Instant::now();
        // the grandchild has the pipe too: it would stay open for a minute
        let hung = output(shell("sleep 60 & sleep 60; echo never"), Duration::from_millis(100));
        assert_eq!(hung.expect_err("killed").kind(), io::ErrorKind::TimedOut);
        assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    }

    #[test]
    fn a_child_that_is_left_behind_is_killed_too() {
        let hung = output(shell("sleep 60 & exit 0"), Duration::from_millis(100));
        assert_eq!(hung.expect_err("killed").kind(), io::ErrorKind::TimedOut);
    }
}
