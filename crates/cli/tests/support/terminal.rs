//! Pseudo-terminals.

use std::fs::File;
use std::io::Read;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, tcgetattr};

/// A pseudo-terminal: the observer's side, and the command's.
pub(crate) fn terminal() -> (File, File) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let slave = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    (File::from(master), slave)
}

/// Returns whether a terminal shows what is typed.
pub(crate) fn echoes(terminal: &File) -> bool {
    tcgetattr(terminal).unwrap().local_modes.contains(LocalModes::ECHO)
}

/// Waits until a question ends with these words.
pub(crate) fn await_words(seen: &mut File, words: &str) {
    let (mut text, mut byte) = (Vec::new(), [0]);
    while !text.ends_with(words.as_bytes()) {
        seen.read_exact(&mut byte).unwrap();
        text.push(byte[0]);
    }
}
