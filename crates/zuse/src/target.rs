//! Targets on the command line: `pool/fs[@snap][:/path]`.

use std::fmt::{self, Write};

/// A dataset or snapshot, and a path in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    /// `pool`, `pool/fs`, `pool/fs@snap` or `pool/volume`.
    pub dataset: String,
    /// The path in the file system, without leading slashes; `None` where the target names the dataset alone.
    pub path: Option<Vec<u8>>,
}

/// Why a text names nothing.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("'{text}' is no dataset: expected POOL[/FS][@SNAP][:/PATH]")]
pub struct BadTarget {
    /// The text.
    pub text: String,
}

impl Target {
    /// Parses `text`. A dataset's name may hold a colon: the path begins at the first `:/`.
    ///
    /// # Errors
    /// [`BadTarget`] if the dataset part is empty or not made of the characters that names of datasets have.
    pub fn parse(text: &[u8]) -> Result<Target, BadTarget> {
        let bad = || BadTarget { text: String::from_utf8_lossy(text).into_owned() };
        let colon = text.windows(2).position(|w| w == b":/");
        let (dataset, path) = match colon {
            Some(n) => (text.get(..n), text.get(n + 1..)),
            None => (Some(text), None),
        };
        let dataset = dataset.and_then(|d| std::str::from_utf8(d).ok()).ok_or_else(bad)?;
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.: /@%".contains(c);
        if dataset.is_empty() || dataset.starts_with('/') || !dataset.chars().all(allowed) {
            return Err(bad());
        }
        let path = path.map(|p| p.iter().copied().skip_while(|b| *b == b'/').collect());
        Ok(Target { dataset: dataset.to_owned(), path })
    }

    /// The name of the pool.
    #[must_use]
    pub fn pool(&self) -> &str {
        self.dataset.split(['/', '@']).next().unwrap_or("")
    }

    /// The path, empty for the root.
    #[must_use]
    pub fn path(&self) -> &[u8] {
        self.path.as_deref().unwrap_or(b"")
    }
}

/// For people: what a name has that is no text is escaped, so that a message is one line.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.dataset)?;
        let Some(path) = &self.path else { return Ok(()) };
        f.write_str(":/")?;
        for chunk in path.utf8_chunks() {
            for c in chunk.valid().chars() {
                match c.is_control() {
                    true => write!(f, "{}", c.escape_default())?,
                    false => f.write_char(c)?,
                }
            }
            chunk.invalid().iter().try_for_each(|byte| write!(f, "\\x{byte:02x}"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_path_begins_at_the_first_colon_slash() {
        let t = Target::parse(b"tank/a:b@c:/x/y:/z").unwrap();
        assert_eq!((t.dataset.as_str(), t.path(), t.pool()), ("tank/a:b@c", &b"x/y:/z"[..], "tank"));
        assert_eq!(Target::parse(b"tank:/a\nb\x1b\xff").unwrap().to_string(), "tank:/a\\nb\\u{1b}\\xff");
        assert_eq!(Target::parse(b"tank").unwrap().path, None);
        assert_eq!(Target::parse(b"tank:/").unwrap().path, Some(Vec::new()));
        assert_eq!(Target::parse(b"tank@s").unwrap().pool(), "tank");
        assert!(Target::parse(b":/x").is_err() && Target::parse(b"/tank").is_err() && Target::parse(b"a\xff").is_err());
    }
}
