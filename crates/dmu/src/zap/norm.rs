//! Comparison of names in a ZAP: normalised, case-folded, or byte for byte (OpenZFS: `u8_textprep_str`).
//!
//! The flags are OpenZFS's. Bytes that are not UTF-8, and characters that Unicode 5.0 did not have, are kept as they are.
//! Deviation: more than 30 combining marks in a row are normalised as one sequence; OpenZFS breaks it with a joiner.

use std::borrow::Cow;

use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::canonical_combining_class;

use super::unicode::{is_assigned, to_upper};

const TOUPPER: u64 = 0x02;
const CANON_DECOMP: u64 = 0x10;
const COMPAT_DECOMP: u64 = 0x20;
const CANON_COMP: u64 = 0x40;
/// Room for a short and for a long name, with a NUL (OpenZFS: `ZAP_MAXNAMELEN`, `ZAP_MAXNAMELEN_NEW`).
const SHORT_NAME: usize = 256;
const LONG_NAME: usize = 1024;
/// U+0345, the one combining mark with a capital.
const YPOGEGRAMMENI: char = '\u{345}';
const CAPITAL_IOTA: char = '\u{399}';

/// The comparison of names (OpenZFS: `matchtype_t`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MatchMode {
    /// Byte for byte.
    Exact,
    /// With the ZAP's normalisation and case folding (`MT_NORMALIZE`).
    Normalize,
    /// With the ZAP's normalisation, but case-sensitive (`MT_NORMALIZE | MT_MATCH_CASE`).
    NormalizeMatchCase,
}

/// A name that is looked for.
pub(super) struct Wanted {
    original: Vec<u8>,
    hashed: Vec<u8>,
    /// The name to compare with: normalised by `flags`.
    compared: Vec<u8>,
    flags: u64,
    mode: MatchMode,
}

impl Wanted {
    pub(super) fn new(name: &[u8], normflags: u64, mode: MatchMode) -> Wanted {
        let flags = if mode == MatchMode::NormalizeMatchCase { normflags & !TOUPPER } else { normflags };
        Wanted {
            original: name.to_vec(),
            hashed: normalise(name, normflags).into_owned(),
            compared: normalise(name, flags).into_owned(),
            flags,
            mode,
        }
    }

    /// The name to hash: normalised by the ZAP's own flags, whatever the mode.
    pub(super) fn hashed(&self) -> &[u8] {
        &self.hashed
    }

    pub(super) fn matches(&self, name: &[u8]) -> bool {
        match self.mode {
            MatchMode::Exact => self.original == name,
            _ => *normalise(name, self.flags) == self.compared,
        }
    }
}

/// The name after Unicode normalisation and folding to upper case, as `normflags` says: 0x2 upper case, 0x10 NFD, 0x50
/// NFC, 0x20 NFKD, 0x60 NFKC; 0 leaves the name as it is. Other combinations normalise by the bits that are set.
#[must_use]
pub fn normalise(name: &[u8], normflags: u64) -> Cow<'_, [u8]> {
    let upper = normflags & TOUPPER != 0;
    let form = normflags & (CANON_DECOMP | COMPAT_DECOMP | CANON_COMP);
    if !upper && (form == 0 || name.is_ascii()) {
        return Cow::Borrowed(name);
    }
    if name.is_ascii() {
        return Cow::Owned(name.to_ascii_uppercase());
    }
    let mut out = Vec::with_capacity(name.len() + 8);
    let mut run = Run::default();
    let mut rest = name;
    while let Some(lead) = rest.first() {
        let (unit, behind) = rest.split_at(unit_len(*lead).min(rest.len()));
        rest = behind;
        match one_char(unit) {
            Some(c) if is_assigned(c) => run.push(c, upper, form),
            _ => {
                run.flush(&mut out, form);
                out.extend_from_slice(unit);
            }
        }
    }
    run.flush(&mut out, form);
    Cow::Owned(out)
}

/// True if OpenZFS can handle a name: its form after `normflags` must fit OpenZFS's buffer for a name of this length,
/// which has the size of the longest short name or of the longest long one (OpenZFS: `zap_name_init_str`, which returns
/// ENOTSUP).
#[must_use]
pub fn normal_form_fits(name: &[u8], normflags: u64) -> bool {
    let room = if name.len() < SHORT_NAME { SHORT_NAME } else { LONG_NAME };
    // no character becomes longer than eighteen times itself
    name.len() * 18 < room || normalise(name, normflags).len() < room
}

fn one_char(unit: &[u8]) -> Option<char> {
    let mut chars = std::str::from_utf8(unit).ok()?.chars();
    chars.next().filter(|_| chars.next().is_none())
}

/// The length that a lead byte announces; 1 if it announces none. The bytes that follow are not checked, as in OpenZFS.
fn unit_len(lead: u8) -> usize {
    match lead {
        0xC2..=0xDF => 2,
        0xE0..=0xEF => 3,
        0xF0..=0xF4 => 4,
        _ => 1,
    }
}

/// Characters that are normalised together.
#[derive(Default)]
struct Run {
    text: String,
    /// Iota subscripts held back until the end of the combining marks, where they become capitals.
    iotas: usize,
}

impl Run {
    fn push(&mut self, c: char, upper: bool, form: u64) {
        let mark = form != 0 && !self.text.is_empty() && canonical_combining_class(c) != 0;
        if !mark {
            self.end_marks();
        }
        match c {
            YPOGEGRAMMENI if mark && upper => self.iotas += 1,
            // among the marks OpenZFS changes the case of no other letter: none has a case
            _ if upper && !mark => self.text.push(to_upper(c)),
            _ => self.text.push(c),
        }
    }

    fn end_marks(&mut self) {
        self.text.extend(std::iter::repeat_n(CAPITAL_IOTA, std::mem::take(&mut self.iotas)));
    }

    fn flush(&mut self, out: &mut Vec<u8>, form: u64) {
        self.end_marks();
        let put = |c: char| out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
        let run = &self.text;
        match (form, form & COMPAT_DECOMP != 0, form & CANON_COMP != 0) {
            (0, ..) => run.chars().for_each(put),
            (_, false, false) => run.nfd().for_each(put),
            (_, false, true) => run.nfc().for_each(put),
            (_, true, false) => run.nfkd().for_each(put),
            (_, true, true) => run.nfkc().for_each(put),
        }
        self.text.clear();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn textprep(text: &str, flags: u64) -> String {
        String::from_utf8(normalise(text.as_bytes(), flags).into_owned()).unwrap()
    }

    #[test]
    fn names_fold_and_normalise() {
        assert_eq!(textprep("Straße é", 0x02), "STRAßE É");
        assert_eq!(textprep("Straße e\u{301}", 0x52), "STRAßE É");
        assert_eq!(textprep("é", 0x10), "e\u{301}");
        assert_eq!(textprep("ﬁ", 0x60), "fi");
        assert_eq!(textprep("é", 0), "é");
    }

    #[test]
    fn a_normal_form_may_be_too_long() {
        let umlauts = |n: usize| "ö".repeat(n);
        // two bytes become three
        assert!(normal_form_fits(umlauts(85).as_bytes(), 0x10));
        assert!(!normal_form_fits(umlauts(86).as_bytes(), 0x10));
        assert!(normal_form_fits(umlauts(127).as_bytes(), 0) && normal_form_fits(umlauts(127).as_bytes(), 0x50));
        // a long name has more room
        assert!(normal_form_fits(umlauts(128).as_bytes(), 0x10));
        assert!(normal_form_fits(umlauts(341).as_bytes(), 0x10) && !normal_form_fits(umlauts(342).as_bytes(), 0x10));
        // the most that a character becomes: 18 letters of 3
        assert!(normal_form_fits("\u{fdfa}".repeat(7).as_bytes(), 0x20));
        assert!(!normal_form_fits("\u{fdfa}".repeat(8).as_bytes(), 0x20));
        assert!(normal_form_fits(&[b'x'; 255], 0x12) && normal_form_fits(b"", 0x12));
    }

    #[test]
    fn bytes_that_are_no_text_pass() {
        assert_eq!(*normalise(b"a\xff\xc3", 0x52), *b"A\xff\xc3");
        assert_eq!(*normalise(b"\xe1a", 0x12), *b"\xe1a");
    }
}
