//! The signals that a command gets.

use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use control::{CancelToken, Canceller};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

/// Where the signals of a command come from.
#[derive(Clone, Debug)]
pub enum Signals {
    /// This process gets them, and those that end a command end the process.
    OfProcess,
    /// A client gets them, and passes them on.
    OfClient(Arc<ClientSignals>),
}

/// The signals that a client has passed on.
pub struct ClientSignals {
    state: Mutex<State>,
    changed: Condvar,
    /// Readable once the command is interrupted.
    interrupted: OwnedFd,
    /// Ends the waits of requests.
    canceller: Canceller,
}

#[derive(Default)]
struct State {
    interrupted: bool,
    ended: bool,
    asked: u64,
}

impl fmt::Debug for ClientSignals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientSignals").field("interrupted", &self.is_interrupted()).finish_non_exhaustive()
    }
}

impl ClientSignals {
    /// The signals of a client that has got none.
    ///
    /// # Errors
    /// When there are no more descriptors.
    pub fn new() -> io::Result<ClientSignals> {
        let interrupted = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(ClientSignals {
            state: Mutex::default(),
            changed: Condvar::new(),
            interrupted,
            canceller: Canceller::default(),
        })
    }

    /// Ends the command (SIGINT, SIGTERM, SIGHUP, or a client that is gone).
    pub fn interrupt(&self) {
        self.state().interrupted = true;
        self.canceller.cancel();
        // the counter can only be full of other interrupts
        let _ = rustix::io::write(&self.interrupted, &1_u64.to_ne_bytes());
        self.changed.notify_all();
    }

    /// Asks the command for its progress (SIGUSR1).
    pub fn ask(&self) {
        self.state().asked += 1;
        self.changed.notify_all();
    }

    /// Returns whether the command is to end.
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        self.state().interrupted
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sleep(&self, time: Duration) -> bool {
        let end = Instant::now().checked_add(time);
        let mut state = self.state();
        while !state.interrupted {
            let left = match end {
                Some(end) => end.saturating_duration_since(Instant::now()),
                None => time,
            };
            if left.is_zero() {
                return true;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        false
    }
}

impl Signals {
    /// The error of a read or write of a command that is interrupted, if it is: nobody is there any more.
    pub(super) fn check(&self) -> io::Result<()> {
        match self {
            Signals::OfClient(client) if client.is_interrupted() => Err(io::ErrorKind::BrokenPipe.into()),
            _ => Ok(()),
        }
    }

    /// Waits until a descriptor can be read or written, or the command is interrupted. Does nothing for the process's own signals: they end a call.
    pub(super) fn ready(&self, fd: BorrowedFd<'_>, for_what: PollFlags) -> io::Result<()> {
        let Signals::OfClient(client) = self else { return Ok(()) };
        loop {
            self.check()?;
            let mut both = [PollFd::new(&fd, for_what), PollFd::new(&client.interrupted, PollFlags::IN)];
            match poll(&mut both, None) {
                Ok(_) if both[0].revents().is_empty() => {}
                // a descriptor that cannot be waited for is always ready
                Ok(_) => return self.check(),
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// The token that ends the waits of requests of the command.
    pub(crate) fn cancel(&self) -> CancelToken {
        match self {
            Signals::OfProcess => CancelToken::default(),
            Signals::OfClient(client) => client.canceller.token(),
        }
    }

    /// Does `work` in another thread when a client's command is interrupted, at its end at the latest ([`ClientSignals::interrupt`] is called then as well). Does nothing for the process's own signals.
    ///
    /// # Errors
    /// When no thread can be had.
    pub(crate) fn when_interrupted(&self, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let Signals::OfClient(client) = self else { return Ok(()) };
        let client = client.clone();
        let wait = move || {
            while client.sleep(Duration::MAX) {}
            work();
        };
        std::thread::Builder::new().name("signals".to_owned()).spawn(wait).map(drop)
    }

    /// Waits. Returns false if the command is to end.
    pub(super) fn sleep(&self, time: Duration) -> bool {
        match self {
            Signals::OfProcess => {
                std::thread::sleep(time);
                true
            }
            Signals::OfClient(client) => client.sleep(time),
        }
    }
}

/// Those of these signals that this process does not ignore: what was ignored when it was started stays so.
pub(crate) fn not_ignored(signals: &[i32]) -> Vec<i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    // a bit mask, from signal 1 on
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    signals.iter().copied().filter(|signal| ignored >> (signal - 1) & 1 == 0).collect()
}

/// The questions about the progress of one piece of work (SIGUSR1).
pub(crate) enum Questions {
    Process(signal_hook::iterator::Signals),
    Client(Arc<ClientSignals>, u64),
}

/// Ends the wait for further questions.
pub(crate) enum NoMore {
    Process(signal_hook::iterator::Handle),
    Client(Arc<ClientSignals>),
}

impl Questions {
    /// The questions from now on; `None` if the process cannot be told of them.
    pub(crate) fn new(signals: &Signals) -> Option<(Questions, NoMore)> {
        match signals {
            Signals::OfProcess => {
                let signals = signal_hook::iterator::Signals::new([signal_hook::consts::SIGUSR1]).ok()?;
                let handle = signals.handle();
                Some((Questions::Process(signals), NoMore::Process(handle)))
            }
            Signals::OfClient(client) => {
                let asked = {
                    let mut state = client.state();
                    state.ended = false;
                    state.asked
                };
                Some((Questions::Client(client.clone(), asked), NoMore::Client(client.clone())))
            }
        }
    }

    /// Calls `answer` at each question, until it returns false or there are no more.
    pub(crate) fn each(self, mut answer: impl FnMut() -> bool) {
        match self {
            Questions::Process(mut signals) => signals.forever().take_while(|_| answer()).for_each(drop),
            Questions::Client(client, mut seen) => loop {
                let mut state = client.state();
                while state.asked == seen && !state.ended {
                    state = client.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                if state.asked == seen {
                    return;
                }
                seen = state.asked;
                drop(state);
                if !answer() {
                    return;
                }
            },
        }
    }
}

impl NoMore {
    /// Ends the wait.
    pub(crate) fn close(self) {
        match self {
            NoMore::Process(handle) => handle.close(),
            NoMore::Client(client) => {
                client.state().ended = true;
                client.changed.notify_all();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn an_interrupt_ends_all_waits() {
        let client = Arc::new(ClientSignals::new().unwrap());
        let signals = Signals::OfClient(client.clone());
        let (empty, _kept) = io::pipe().unwrap();
        let token = signals.cancel();
        assert!(signals.sleep(Duration::from_millis(1)) && signals.check().is_ok() && !token.is_cancelled());
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| signals.sleep(Duration::MAX));
            let reader = scope.spawn(|| signals.ready(empty.as_fd(), PollFlags::IN));
            client.interrupt();
            assert!(!sleeper.join().unwrap() && reader.join().unwrap().is_err());
        });
        assert!(!signals.sleep(Duration::ZERO) && signals.check().is_err() && token.is_cancelled());
        client.interrupt();
    }

    #[test]
    fn a_client_asks_for_progress_until_the_work_is_done() {
        let client = Arc::new(ClientSignals::new().unwrap());
        let signals = Signals::OfClient(client.clone());
        // asked before anything was done
        client.ask();
        for _ in 0..2 {
            let (questions, no_more) = Questions::new(&signals).unwrap();
            let (tell, told) = std::sync::mpsc::channel();
            std::thread::scope(|scope| {
                scope.spawn(move || questions.each(|| tell.send(()).is_ok()));
                client.ask();
                told.recv().unwrap();
                no_more.close();
                assert!(told.recv().is_err());
            });
        }
    }
}
