//! The text of a kstat, as the SPL shows it on Linux (`kstat_seq_show_headers`, `kstat_seq_show_named`).
//!
//! A named kstat begins with a line of numbers: its number, its type, its flags, the number of its figures, their bytes in memory, and two times in nanoseconds, when it was made and when it
//! was read. Then comes a line of titles, and one for each figure. Of raw kstats only the lists of `procfs_list` are made here, which have a line of titles, and texts without any.

use std::borrow::Cow;
use std::fmt::Write;

/// The type of a kstat with named figures (`KSTAT_TYPE_NAMED`).
const NAMED: u32 = 1;
/// Its figures are made when it is read (`KSTAT_FLAG_VIRTUAL`).
const VIRTUAL: u32 = 1;
/// Bytes of a figure in memory: `sizeof (kstat_named_t)`.
const FIGURE_BYTES: usize = 272;
/// Bytes of a string beside its figure: `ZFS_MAX_DATASET_NAME_LEN`.
const STRING_BYTES: usize = 256;

/// The value of a figure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A number (`KSTAT_DATA_UINT64`).
    Uint64(u64),
    /// A text (`KSTAT_DATA_STRING`).
    String(String),
}

impl From<u64> for Value {
    fn from(number: u64) -> Value {
        Value::Uint64(number)
    }
}

/// A named figure.
pub type Figure = (Cow<'static, str>, Value);

/// What the first line of a kstat says besides its figures.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    /// Its number, which no other one has.
    pub id: u32,
    /// When it was made, in nanoseconds since the machine started.
    pub made_ns: u64,
    /// When it is read, likewise.
    pub read_ns: u64,
}

/// The text of a named kstat.
#[must_use]
pub fn named(header: Header, figures: &[Figure]) -> String {
    let strings = figures.iter().filter(|(_, value)| matches!(value, Value::String(_))).count();
    let (count, bytes) = (figures.len(), figures.len() * FIGURE_BYTES + strings * STRING_BYTES);
    let Header { id, made_ns, read_ns } = header;
    let mut text = format!("{id} {NAMED} 0x{VIRTUAL:02x} {count} {bytes} {made_ns} {read_ns}\n");
    line(&mut text, "name", "type", "data");
    for (name, value) in figures {
        match value {
            Value::Uint64(number) => line(&mut text, name, "4", &number.to_string()),
            Value::String(string) => line(&mut text, name, "7", string),
        }
    }
    text
}

fn line(text: &mut String, name: &str, kind: &str, data: &str) {
    // a string takes all
    let _ = writeln!(text, "{name:<31} {kind:<4} {data}");
}

/// A row of a list, whose columns have these widths; each is on the left of its own. The last one is followed by nothing but the blanks of its width.
pub fn row(text: &mut String, widths: &[usize], words: &[&dyn std::fmt::Display]) {
    let mut between = "";
    for (width, word) in widths.iter().zip(words) {
        // the width holds for a word of any kind
        let word = word.to_string();
        let _ = write!(text, "{between}{word:<width$}");
        between = " ";
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_kstat_has_the_lines_of_the_spl() {
        let header = Header { id: 13, made_ns: 8_437_256_311, read_ns: 93_812_345_678_901 };
        let figures = [("hits".into(), 7.into()), ("misses".into(), u64::MAX.into())];
        let wanted = "13 1 0x01 2 544 8437256311 93812345678901\n\
                      name                            type data\n\
                      hits                            4    7\n\
                      misses                          4    18446744073709551615\n";
        assert_eq!(named(header, &figures), wanted);
        // OpenZFS 2.1 has 147 figures of ARC, and says 39984
        let many: Vec<Figure> = (0..147).map(|_| ("x".into(), 0.into())).collect();
        assert!(named(header, &many).starts_with("13 1 0x01 147 39984 "));
        let dataset = [("dataset_name".into(), Value::String("t/a b".to_owned()))];
        let text = named(header, &dataset);
        assert!(
            text.starts_with("13 1 0x01 1 528 ") && text.ends_with("\ndataset_name                    7    t/a b\n")
        );
    }

    #[test]
    fn rows_keep_to_the_widths_of_their_columns() {
        let mut text = String::new();
        row(&mut text, &[8, 3], &[&"txg", &"state"]);
        row(&mut text, &[8, 3], &[&123_456_789_012u64, &'C']);
        assert_eq!(text, "txg      state\n123456789012 C  \n");
    }
}
