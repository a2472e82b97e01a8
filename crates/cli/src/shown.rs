//! Escapes text of unknown origin so that it cannot act on a terminal: anybody may have chosen the names of files,
//! datasets and devices, and the comments and histories of pools.
//!
//! Escaped are control characters (C0, C1 and DEL), characters that change the direction of text, line separators, and
//! bytes that are not UTF-8: as `\n`, `\t`, else `\xNN`, byte by byte. In names, newlines and tabs are escaped too
//! ([`name`]); the output of a whole command keeps them ([`Shown`]), as its lines and columns are made of them.

use std::borrow::Cow;
use std::io::{self, Write};

/// Longest character, in bytes.
const CHAR_MAX: usize = 4;

/// Returns whether a terminal, or a person who reads the text, would take a character for something else than itself.
fn acts(c: char) -> bool {
    let directs = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || directs || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}')
}

/// Returns whether a byte is printed as it is; other bytes may begin a character that acts on a terminal.
fn is_plain(byte: u8) -> bool {
    matches!(byte, b'\n' | b'\t' | b' '..=b'~')
}

fn escape(out: &mut String, bytes: &[u8]) {
    for byte in bytes {
        match byte {
            b'\n' => out.push_str("\\n"),
            b'\t' => out.push_str("\\t"),
            byte => out.push_str(&format!("\\x{byte:02x}")),
        }
    }
}

fn push(out: &mut String, text: &str, kept: &[char]) {
    for c in text.chars() {
        match acts(c) && !kept.contains(&c) {
            true => escape(out, c.encode_utf8(&mut [0; CHAR_MAX]).as_bytes()),
            false => out.push(c),
        }
    }
}

/// A name with every special character escaped.
pub(crate) fn name(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        push(&mut out, chunk.valid(), &[]);
        escape(&mut out, chunk.invalid());
    }
    out
}

/// The same where control characters, newlines among them, would forge other lines.
pub(crate) fn on_one_line(text: &str) -> Cow<'_, str> {
    if text.contains(char::is_control) { Cow::Owned(name(text.as_bytes())) } else { Cow::Borrowed(text) }
}

/// A message, or several lines of text: newlines and tabs stay.
pub(crate) fn text(text: &str) -> Cow<'_, str> {
    if text.bytes().all(is_plain) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    push(&mut out, text, &['\n', '\t']);
    Cow::Owned(out)
}

/// JSON, which has escapes of its own.
pub(crate) fn json(text: &str) -> Cow<'_, str> {
    if text.bytes().all(is_plain) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match acts(c) && c != '\n' {
            true => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            false => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// Output in which everything is escaped except newlines and tabs.
pub(crate) struct Shown<W> {
    out: W,
    /// The beginning of a character whose remaining bytes have not been written yet.
    begun: Vec<u8>,
}

impl<W: Write> Shown<W> {
    pub(crate) fn new(out: W) -> Shown<W> {
        Shown { out, begun: Vec::new() }
    }

    fn show(&mut self, bytes: &[u8], whole: bool) -> io::Result<()> {
        let mut out = String::with_capacity(bytes.len());
        let mut rest = bytes;
        while !rest.is_empty() {
            let e = match std::str::from_utf8(rest) {
                Ok(text) => {
                    push(&mut out, text, &['\n', '\t']);
                    break;
                }
                Err(e) => e,
            };
            let (valid, broken) = rest.split_at(e.valid_up_to());
            push(&mut out, std::str::from_utf8(valid).unwrap_or_default(), &['\n', '\t']);
            match e.error_len() {
                None if !whole => {
                    self.begun = broken.to_vec();
                    break;
                }
                len => {
                    let (bad, after) = broken.split_at(len.unwrap_or(broken.len()));
                    escape(&mut out, bad);
                    rest = after;
                }
            }
        }
        self.out.write_all(out.as_bytes())
    }
}

impl<W: Write> Write for Shown<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.begun.is_empty() && bytes.iter().copied().all(is_plain) {
            self.out.write_all(bytes)?;
            return Ok(bytes.len());
        }
        let mut all = std::mem::take(&mut self.begun);
        all.extend_from_slice(bytes);
        self.show(&all, false)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let begun = std::mem::take(&mut self.begun);
        if !begun.is_empty() {
            self.show(&begun, true)?;
        }
        self.out.flush()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Text, and its escaped form in a name.
    const CASES: [(&[u8], &str); 8] = [
        (b"plain name.txt", "plain name.txt"),
        ("grüß € 🐧".as_bytes(), "grüß € 🐧"),
        (b"\x1b[2J", "\\x1b[2J"),
        (b"a\nb\tc\rd\x7f", "a\\nb\\tc\\x0dd\\x7f"),
        ("\u{9b}31m".as_bytes(), "\\xc2\\x9b31m"),
        (
            "a\u{61c}b\u{202e}c\u{2066}d\u{2028}".as_bytes(),
            "a\\xd8\\x9cb\\xe2\\x80\\xaec\\xe2\\x81\\xa6d\\xe2\\x80\\xa8",
        ),
        (b"\xff\xfe ok \xc3", "\\xff\\xfe ok \\xc3"),
        (b"back\\slash", "back\\slash"),
    ];

    #[test]
    fn what_acts_is_escaped_and_what_is_text_stays() {
        for (bytes, shown) in CASES {
            assert_eq!(name(bytes), shown);
        }
        assert_eq!(text("a\n\tb\u{1b}c"), "a\n\tb\\x1bc");
        assert_eq!(json("{\"a\":\"\u{202e}\u{9b}€\"}\n"), "{\"a\":\"\\u202e\\u009b€\"}\n");
    }

    #[test]
    fn it_does_not_matter_where_output_is_cut() {
        for (bytes, shown) in CASES {
            let shown = shown.replace("\\n", "\n").replace("\\t", "\t");
            for cut in 1..=bytes.len() {
                let mut out = Shown::new(Vec::new());
                bytes.chunks(cut).for_each(|part| out.write_all(part).unwrap());
                out.flush().unwrap();
                assert_eq!(String::from_utf8(out.out).unwrap(), shown, "cut at {cut}");
            }
        }
    }
}
