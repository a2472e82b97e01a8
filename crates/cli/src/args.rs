//! Options as `getopt_long(3)` takes them: scripts rely on merged flags (`-Hprt`), attached values (`-oname`), options after
//! operands, `--`, and abbreviated long options.

use std::ffi::{OsStr, OsString};

use lexopt::Arg;

use crate::console;

/// A long option: its name, and the letter that it stands for. A letter of the private area has no short form.
pub(crate) type Long = (&'static str, char);

/// `--json-int`.
pub(crate) const JSON_INT: char = '\u{e000}';
/// `--json-flat-vdevs`.
pub(crate) const JSON_FLAT_VDEVS: char = '\u{e001}';
/// `--json-pool-key-guid`.
pub(crate) const JSON_POOL_KEY_GUID: char = '\u{e002}';
/// `--rewind-to-checkpoint`.
pub(crate) const REWIND_TO_CHECKPOINT: char = '\u{e003}';
/// `--power`.
pub(crate) const POWER: char = '\u{e004}';
/// `--size`.
pub(crate) const SIZE: char = '\u{e005}';
/// `--types`.
pub(crate) const TYPES: char = '\u{e006}';

/// `--allow-in-use`, `--allow-replication-mismatch`, `--allow-ashift-mismatch`.
pub(crate) const ALLOW_IN_USE: char = '\u{e007}';
pub(crate) const ALLOW_REPLICATION: char = '\u{e008}';
pub(crate) const ALLOW_ASHIFT: char = '\u{e009}';

/// An error in the options; the texts are OpenZFS's.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Bad {
    #[error("invalid option '{0}'")]
    Unknown(String),
    #[error("missing argument for '{0}' option")]
    NoValue(char),
}

/// Options in the order given, and operands.
#[derive(Debug, Default)]
pub(crate) struct Parsed {
    pub(crate) options: Vec<(char, OsString)>,
    pub(crate) operands: Vec<OsString>,
}

impl Parsed {
    /// Returns whether a flag was given.
    pub(crate) fn has(&self, flag: char) -> bool {
        self.options.iter().any(|(c, _)| *c == flag)
    }

    /// Returns how often a flag was given.
    pub(crate) fn count(&self, flag: char) -> usize {
        self.options.iter().filter(|(c, _)| *c == flag).count()
    }

    /// The value of the last option of that letter.
    pub(crate) fn value(&self, option: char) -> Option<&OsStr> {
        self.values(option).last()
    }

    /// The values of all options of that letter.
    pub(crate) fn values(&self, option: char) -> impl Iterator<Item = &OsStr> {
        self.options.iter().filter(move |(c, _)| *c == option).map(|(_, v)| v.as_os_str())
    }

    /// As [`Parsed::value`], as text.
    pub(crate) fn text(&self, option: char) -> Option<String> {
        self.value(option).map(|v| v.to_string_lossy().into_owned())
    }

    /// The operands as text.
    pub(crate) fn names(&self) -> Vec<String> {
        self.operands.iter().map(|o| o.to_string_lossy().into_owned()).collect()
    }
}

/// Parses `args` by a getopt string: a letter is a flag, a letter with a colon after it takes a value; a colon at the
/// beginning distinguishes a missing value from an unknown option.
pub(crate) fn parse(spec: &str, longs: &[Long], args: &[OsString]) -> Result<Parsed, Bad> {
    let tells_missing = spec.starts_with(':');
    let takes_value = |c: char| spec.find(c).is_some_and(|at| spec[at + c.len_utf8()..].starts_with(':'));
    let known = |c: char| c != ':' && spec.contains(c);
    let permute = console::var("POSIXLY_CORRECT").is_none();

    let mut parser = lexopt::Parser::from_args(args.iter().cloned());
    let mut parsed = Parsed::default();
    loop {
        let option = match parser.next().map_err(|e| Bad::Unknown(of_lexopt(&e)))? {
            None => return Ok(parsed),
            Some(Arg::Value(v)) => {
                parsed.operands.push(v);
                if !permute {
                    parsed.operands.extend(parser.raw_args().map(Iterator::collect::<Vec<_>>).unwrap_or_default());
                    return Ok(parsed);
                }
                continue;
            }
            Some(Arg::Short(c)) if known(c) => c,
            Some(Arg::Short(c)) => return Err(Bad::Unknown(c.to_string())),
            Some(Arg::Long(name)) => long(longs, name).ok_or_else(|| Bad::Unknown(format!("--{name}")))?,
        };
        let value = if takes_value(option) {
            parser.value().map_err(|_| match tells_missing {
                true => Bad::NoValue(option),
                false => Bad::Unknown(option.to_string()),
            })?
        } else {
            OsString::new()
        };
        parsed.options.push((option, value));
    }
}

/// A long option by its name or an unambiguous beginning of it.
fn long(longs: &[Long], name: &str) -> Option<char> {
    if let Some((_, c)) = longs.iter().find(|(l, _)| *l == name) {
        return Some(*c);
    }
    let mut fitting = longs.iter().filter(|(l, _)| l.starts_with(name)).map(|(_, c)| *c);
    let first = fitting.next()?;
    fitting.all(|c| c == first).then_some(first)
}

fn of_lexopt(e: &lexopt::Error) -> String {
    match e {
        lexopt::Error::UnexpectedOption(o) => o.trim_start_matches('-').to_owned(),
        lexopt::Error::UnexpectedValue { option, .. } => option.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn run(spec: &str, args: &[&str]) -> Result<(String, Vec<String>), Bad> {
        let longs = [("json", 'j'), ("json-int", JSON_INT), ("raw", 'w')];
        let args: Vec<OsString> = args.iter().map(OsString::from).collect();
        let parsed = console::in_test(|| parse(spec, &longs, &args))?;
        let options = parsed.options.iter().map(|(c, v)| format!("{c}{}", v.to_string_lossy())).collect::<Vec<_>>();
        Ok((options.join(" "), parsed.names()))
    }

    #[test]
    fn merged_flags_and_attached_values() {
        assert_eq!(
            run("Hprt:o:", &["-Hprt", "snap", "-oname", "tank"]),
            Ok(("H p r tsnap oname".into(), vec!["tank".into()]))
        );
        assert_eq!(run("Ho:", &["-Ho", "name", "a"]).unwrap().0, "H oname");
        assert_eq!(run("o:", &["-oa=b"]).unwrap().0, "oa=b");
    }

    #[test]
    fn options_after_operands_and_the_double_dash() {
        assert_eq!(run("Fx:", &["a", "-F", "--", "-x"]), Ok(("F".into(), vec!["a".into(), "-x".into()])));
        assert_eq!(run("F", &["-"]), Ok((String::new(), vec!["-".into()])));
    }

    #[test]
    fn long_options_may_be_cut_short() {
        assert_eq!(run("j", &["--json"]).unwrap().0, "j");
        assert_eq!(run("w", &["--ra"]).unwrap().0, "w");
        assert!(run("j", &["--js"]).is_err());
        assert_eq!(run("j", &["--nope"]), Err(Bad::Unknown("--nope".into())));
    }

    #[test]
    fn what_is_wrong() {
        assert_eq!(run("a", &["-b"]), Err(Bad::Unknown("b".into())));
        assert_eq!(run("o:", &["-o"]), Err(Bad::Unknown("o".into())));
        assert_eq!(run(":o:", &["-o"]), Err(Bad::NoValue('o')));
    }
}
