//! Standard error of a console as the terminal that a progress bar is drawn on.

use std::fmt;
use std::io::{self, Write};
use std::mem::take;
use std::sync::{Mutex, PoisonError};

use indicatif::TermLike;

use super::{Stream, var};

/// The size of a terminal that does not say its own: rows and columns.
const SIZE: (u16, u16) = (24, 80);

/// The terminal. What is drawn is written at once, when all of it is known.
pub(crate) struct Screen {
    terminal: Stream,
    drawn: Mutex<Vec<u8>>,
}

impl Screen {
    /// The terminal that standard error is; `None` if it is no terminal, or one that cannot move its cursor.
    pub(crate) fn new() -> Option<Screen> {
        let is_dumb = var("TERM").is_none_or(|name| name == "dumb");
        (super::stderr_is_terminal() && !is_dumb).then(|| Screen { terminal: super::stderr(), drawn: Mutex::default() })
    }

    fn size(&self) -> (u16, u16) {
        let told = rustix::termios::tcgetwinsize(&self.terminal).map_or((0, 0), |size| (size.ws_row, size.ws_col));
        if told.0 > 0 && told.1 > 0 { told } else { SIZE }
    }

    fn draw(&self, text: &str) -> io::Result<()> {
        self.drawn.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(text.as_bytes());
        Ok(())
    }

    fn moved(&self, n: usize, direction: char) -> io::Result<()> {
        if n > 0 { self.draw(&format!("\x1b[{n}{direction}")) } else { Ok(()) }
    }
}

impl fmt::Debug for Screen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Screen").finish_non_exhaustive()
    }
}

impl TermLike for Screen {
    fn width(&self) -> u16 {
        self.size().1
    }

    fn height(&self) -> u16 {
        self.size().0
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        self.moved(n, 'A')
    }

    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        self.moved(n, 'B')
    }

    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        self.moved(n, 'C')
    }

    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        self.moved(n, 'D')
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.draw(&format!("{text}\n"))
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        self.draw(text)
    }

    fn clear_line(&self) -> io::Result<()> {
        self.draw("\r\x1b[2K")
    }

    fn flush(&self) -> io::Result<()> {
        let drawn = take(&mut *self.drawn.lock().unwrap_or_else(PoisonError::into_inner));
        self.terminal.clone().write_all(&drawn)
    }
}
