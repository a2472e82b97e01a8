//! Selectors of objects: `OBJECT`, `START:END` or `START:END:FLAGS`.

use base::ObjectId;
use ondisk::ObjectType;

use super::type_name::type_name;

/// A range of objects, optionally of some types only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Selection {
    pub(super) start: ObjectId,
    pub(super) end: ObjectId,
    pub(super) types: Types,
}

/// Types of objects that are wanted: a set of bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Types(u64);

const DIRECTORY: u64 = 1;
const PLAIN_FILE: u64 = 2;
const SPACE_MAP: u64 = 4;
const ZAP: u64 = 8;
const SUPPORTED: u64 = DIRECTORY | PLAIN_FILE | SPACE_MAP | ZAP;

impl Types {
    pub(super) const ALL: Types = Types(u64::MAX);

    /// Parses `A`, `d`, `f`, `m`, `z`, each with a `-` before it to leave that type out.
    fn parse(flags: &str) -> Result<Types, &'static str> {
        let mut set = 0;
        let mut letters = flags.chars();
        while let Some(letter) = letters.next() {
            let (negated, letter) = match letter {
                '-' => (true, letters.next().ok_or("Invalid trailing negation operator")?),
                letter => (false, letter),
            };
            let bit = match letter {
                'd' => DIRECTORY,
                'f' => PLAIN_FILE,
                'm' => SPACE_MAP,
                'z' => ZAP,
                'A' => u64::MAX,
                _ => return Err("Invalid flag"),
            };
            // as in zdb, which keeps a bit in 32 bits with a sign
            set = if negated { set & !bit } else { set | bit };
        }
        Ok(Types(set))
    }

    /// Returns whether objects of type `kind` are wanted. No flags mean all types.
    pub(super) fn want(self, kind: ObjectType) -> bool {
        let set = self.0;
        if set == 0 || self == Types::ALL {
            return true;
        }
        match kind {
            ObjectType::DIRECTORY_CONTENTS => set & DIRECTORY != 0,
            ObjectType::PLAIN_FILE_CONTENTS => set & PLAIN_FILE != 0,
            ObjectType::SPACE_MAP => set & SPACE_MAP != 0,
            _ if type_name(kind) == "zap" => set & ZAP != 0,
            _ => set | SUPPORTED == u64::MAX,
        }
    }
}

impl Selection {
    /// Parses a selector. Negative numbers are the objects in the root block.
    pub(super) fn parse(text: &str) -> Result<Selection, &'static str> {
        if !text.contains(':') {
            let id = object_number(text).ok_or("Invalid characters in object ID")?;
            return Ok(Selection { start: id, end: id, types: Types(0) });
        }
        if text.starts_with(':') {
            return Err("Invalid leading colon");
        }
        if text.ends_with(':') {
            return Err("Invalid trailing colon");
        }
        let mut parts = text.split(':').filter(|part| !part.is_empty());
        let start = parts.next().and_then(object_number).ok_or("Invalid characters in start object ID")?;
        let end = parts.next().and_then(object_number).ok_or("Invalid characters in end object ID")?;
        if start > end {
            return Err("Start object ID may not exceed end object ID");
        }
        let types = parts.next().map_or(Ok(Types::ALL), Types::parse)?;
        match parts.next() {
            None => Ok(Selection { start, end, types }),
            Some(_) => Err("Invalid colon-delimited field after flags"),
        }
    }
}

/// A number as `strtoull(3)` reads it: a minus wraps around.
fn object_number(text: &str) -> Option<ObjectId> {
    match text.strip_prefix('-') {
        Some(rest) => super::parse_number(rest).map(u64::wrapping_neg).map(ObjectId),
        None => super::parse_number(text).map(ObjectId),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn selectors_as_the_manual_has_them() {
        assert_eq!(
            Selection::parse("0x10").unwrap(),
            Selection { start: ObjectId(16), end: ObjectId(16), types: Types(0) }
        );
        assert_eq!(Selection::parse("-1").unwrap().start, ObjectId(u64::MAX));
        assert_eq!(
            Selection::parse("0:-1").unwrap(),
            Selection { start: ObjectId(0), end: ObjectId(u64::MAX), types: Types::ALL }
        );
        let files = Selection::parse("1:9:f").unwrap().types;
        assert!(files.want(ObjectType::PLAIN_FILE_CONTENTS) && !files.want(ObjectType::DIRECTORY_CONTENTS));
        let others = Selection::parse("1:9:A-f").unwrap().types;
        assert!(!others.want(ObjectType::PLAIN_FILE_CONTENTS) && others.want(ObjectType::MASTER_NODE));
    }

    #[test]
    fn what_is_wrong_with_a_selector() {
        for bad in ["x", ":1", "1:", "2:1", "1:2:q", "1:2:f-", "1:2:f:3", "1:y"] {
            assert!(Selection::parse(bad).is_err(), "{bad}");
        }
    }
}
