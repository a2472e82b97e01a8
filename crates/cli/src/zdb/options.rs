//! The options of `zdb`: letters that are counted, and a few with a value.
//!
//! Without a letter that says what to show, everything that is quick to show is shown. `-v` raises the count of every
//! letter that was given; a letter given twice raises only its own count.

use std::ffi::OsString;
use std::path::PathBuf;

use base::Txg;

use crate::args::{self, Bad, Long, Parsed};
use crate::console;
use crate::error::{Failure, failed, usage};

const SPEC: &str = "AbBcCdDeEFGhHiI:jkK:lLmMNo:Op:PqrRsSt:TuU:vVx:XYyZ\u{e010}\u{e011}:\u{e012}:";
/// `--allocated-map`.
const ALLOCATED_MAP: char = '\u{e010}';
/// `--bin`.
const BIN: char = '\u{e011}';
/// `--class`.
const CLASS: char = '\u{e012}';

const LONGS: &[Long] = &[
    ("ignore-assertions", 'A'),
    ("block-stats", 'b'),
    ("backup", 'B'),
    ("checksum", 'c'),
    ("config", 'C'),
    ("datasets", 'd'),
    ("dedup-stats", 'D'),
    ("exported", 'e'),
    ("embedded-block-pointer", 'E'),
    ("automatic-rewind", 'F'),
    ("dump-debug-msg", 'G'),
    ("history", 'h'),
    ("intent-logs", 'i'),
    ("inflight", 'I'),
    ("json", 'j'),
    ("checkpointed-state", 'k'),
    ("key", 'K'),
    ("label", 'l'),
    ("disable-leak-tracking", 'L'),
    ("metaslabs", 'm'),
    ("metaslab-groups", 'M'),
    ("numeric", 'N'),
    ("option", 'o'),
    ("object-lookups", 'O'),
    ("path", 'p'),
    ("parseable", 'P'),
    ("skip-label", 'q'),
    ("copy-object", 'r'),
    ("read-block", 'R'),
    ("io-stats", 's'),
    ("simulate-dedup", 'S'),
    ("txg", 't'),
    ("brt-stats", 'T'),
    ("uberblock", 'u'),
    ("cachefile", 'U'),
    ("verbose", 'v'),
    ("verbatim", 'V'),
    ("dump-blocks", 'x'),
    ("extreme-rewind", 'X'),
    ("all-reconstruction", 'Y'),
    ("livelist", 'y'),
    ("zstd-headers", 'Z'),
    ("allocated-map", ALLOCATED_MAP),
    ("bin", BIN),
    ("class", CLASS),
];

/// Letters that select what to show; if any is given, only the selected parts are shown.
const SHOWING: &str = "bBcCdDEGhilmMNOrRsSTuyZ\u{e010}";
/// Letters that change how things are shown.
const MODES: &str = "AeFHkLPqX";
/// Letters that are not on when everything is shown.
const NOT_BY_DEFAULT: &str = "ABeEFkKlLNOPrRSXy";
/// Letters implied when everything is shown.
const EVERYTHING: &str = "bcCdDGhimMsTuZ";

/// The size by which blocks are put into bins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Bin {
    Lsize,
    Psize,
    Asize,
}

/// The allocation classes whose blocks are counted by size; none set: all.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Classes {
    pub(super) normal: bool,
    pub(super) special: bool,
    pub(super) dedup: bool,
    pub(super) other: bool,
}

impl Classes {
    pub(super) fn is_all(self) -> bool {
        self == Classes::default()
    }

    /// The names of the classes that are set.
    pub(super) fn names(self) -> Vec<&'static str> {
        let all = [(self.normal, "normal"), (self.special, "special"), (self.dedup, "dedup"), (self.other, "other")];
        all.into_iter().filter(|(set, _)| *set).map(|(_, name)| name).collect()
    }
}

/// The request of a call of `zdb`.
pub(super) struct Options {
    counts: Vec<(char, u32)>,
    /// The number of `-v` given.
    pub(super) verbose: u32,
    /// The folders in which to search for devices (`-p`).
    pub(super) paths: Vec<PathBuf>,
    /// The newest txg that may be opened (`-t`).
    pub(super) txg: Option<Txg>,
    /// A cache file of OpenZFS (`-U`, `SPA_CONFIG_PATH`).
    pub(super) cachefile: Option<PathBuf>,
    /// Key of an encrypted dataset (`-K`).
    pub(super) key: Option<String>,
    /// Set by `--bin`.
    pub(super) bin: Option<Bin>,
    /// Set by `--class`.
    pub(super) classes: Classes,
    /// The folder for copies of what is read from devices (`-x`).
    pub(super) dump: Option<PathBuf>,
    /// Print JSON (`-j`).
    pub(super) json: bool,
    /// The operands.
    pub(super) operands: Vec<String>,
}

impl Options {
    /// The number of times a letter was given, plus that of `-v`; 0 if it was not given.
    pub(super) fn level(&self, letter: char) -> u32 {
        self.counts.iter().find(|(c, _)| *c == letter).map_or(0, |(_, n)| *n)
    }

    /// Returns whether a letter was given.
    pub(super) fn has(&self, letter: char) -> bool {
        self.level(letter) > 0
    }

    /// Returns whether allocated ranges are listed (`--allocated-map`).
    pub(super) fn allocated_map(&self) -> bool {
        self.has(ALLOCATED_MAP)
    }

    /// Reads the arguments.
    pub(super) fn parse(args: &[OsString]) -> Result<Options, Failure> {
        let parsed = args::parse(SPEC, LONGS, args).map_err(|bad| match bad {
            Bad::Unknown(option) if option.starts_with("--") => usage(format!("zdb: unrecognized option '{option}'")),
            Bad::Unknown(option) => usage(format!("zdb: invalid option -- '{option}'")),
            other => usage(other.to_string()),
        })?;
        let verbose = parsed.count('v') as u32;
        let mut options = Options {
            counts: Vec::new(),
            verbose,
            paths: parsed.values('p').map(PathBuf::from).collect(),
            txg: txg(&parsed)?,
            cachefile: cachefile(&parsed)?,
            key: parsed.text('K'),
            bin: bin(&parsed)?,
            classes: classes(&parsed)?,
            dump: parsed.value('x').map(PathBuf::from),
            json: parsed.has('j'),
            operands: parsed.names(),
        };
        if parsed.text('I').is_some_and(|n| number(&n).is_none_or(|n| n == 0)) {
            return Err(usage("maximum number of inflight bytes must be greater than 0"));
        }
        if !parsed.has('e') && !options.paths.is_empty() {
            return Err(usage("-p option requires use of -e"));
        }
        if parsed.has('H') {
            return Err(usage("-H option requires use of -f"));
        }
        if parsed.has('Y') {
            base::tunable::ZFS_RECONSTRUCT_INDIRECT_COMBINATIONS_MAX.set(u64::from(u32::MAX));
        }
        options.count(&parsed, verbose);
        set_tunables(&parsed)?;
        Ok(options)
    }

    fn count(&mut self, parsed: &Parsed, verbose: u32) {
        let everything = !SHOWING.chars().any(|c| parsed.has(c)) && !parsed.has('o');
        self.verbose = if everything { verbose.max(1) } else { verbose };
        for letter in SHOWING.chars().chain(MODES.chars()).chain(['K', 'o']) {
            let mut n = parsed.count(letter) as u32;
            if everything && EVERYTHING.contains(letter) && !NOT_BY_DEFAULT.contains(letter) {
                n = n.max(1);
            }
            if n > 0 {
                self.counts.push((letter, n + self.verbose));
            }
        }
    }
}

/// A number as `strtoull(3)` with base 0 reads it.
pub(super) fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None if text.len() > 1 && text.starts_with('0') => u64::from_str_radix(text, 8).ok(),
        None => text.parse().ok(),
    }
}

fn txg(parsed: &Parsed) -> Result<Option<Txg>, Failure> {
    /// The first txg of a pool.
    const INITIAL: u64 = 4;
    let Some(text) = parsed.text('t') else { return Ok(None) };
    let txg = number(&text).filter(|n| *n >= INITIAL);
    txg.map(|n| Some(Txg(n))).ok_or_else(|| usage(format!("incorrect txg specified: {text}")))
}

fn cachefile(parsed: &Parsed) -> Result<Option<PathBuf>, Failure> {
    let path = match parsed.value('U') {
        Some(given) => PathBuf::from(given),
        None => match console::var("SPA_CONFIG_PATH") {
            Some(set) => return Ok(Some(PathBuf::from(set))),
            None => return Ok(None),
        },
    };
    if path.is_absolute() {
        Ok(Some(path))
    } else {
        Err(usage("cachefile must be an absolute path (i.e. start with a slash)"))
    }
}

fn bin(parsed: &Parsed) -> Result<Option<Bin>, Failure> {
    let Some(text) = parsed.text(BIN) else { return Ok(None) };
    match text.as_str() {
        "lsize" => Ok(Some(Bin::Lsize)),
        "psize" => Ok(Some(Bin::Psize)),
        "asize" => Ok(Some(Bin::Asize)),
        _ => Err(usage(format!("--bin=\"{text}\" must be one of \"lsize\", \"psize\" or \"asize\""))),
    }
}

fn classes(parsed: &Parsed) -> Result<Classes, Failure> {
    let mut classes = Classes::default();
    let Some(text) = parsed.text(CLASS) else { return Ok(classes) };
    let words = "must be a comma-separated list of either \"normal\", \"special\", \"asize\" or \"other\"";
    for word in text.split(',').filter(|w| !w.is_empty()) {
        match word {
            "normal" => classes.normal = true,
            "special" => classes.special = true,
            "dedup" => classes.dedup = true,
            "other" => classes.other = true,
            _ => return Err(usage(format!("--class=\"{text}\" {words}; got \"{word}\""))),
        }
    }
    if classes.is_all() { Err(usage(format!("--class= {words}; got empty"))) } else { Ok(classes) }
}

/// `-o NAME=VALUE` sets a tunable, `-o NAME` shows it, `-o show` shows all of them; each is printed.
fn set_tunables(parsed: &Parsed) -> Result<(), Failure> {
    let mut asked = false;
    for text in parsed.values('o').map(|v| v.to_string_lossy()) {
        asked = true;
        let (name, value) = text.split_once('=').map_or((&*text, None), |(n, v)| (n, Some(v)));
        if name == "show" && value.is_none() {
            base::tunable::ALL.iter().for_each(|t| println!("{}: {t}", t.name));
            continue;
        }
        let tunable = base::tunable::ALL.iter().find(|t| t.name == name);
        let tunable = tunable.ok_or_else(|| failed(format!("no such tunable: {name}")))?;
        let old = tunable.to_string();
        match value {
            None => println!("{name}: {old}"),
            Some(value) => {
                base::tunable::set(name, value).map_err(failed)?;
                println!("{name}: {old} -> {tunable}");
            }
        }
    }
    // without operands the option has done its work
    if asked && parsed.operands.is_empty() && !parsed.has('C') { Err(failed("")) } else { Ok(()) }
}
