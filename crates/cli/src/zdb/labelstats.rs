//! `-ll`: how many bytes of a label its configuration takes, by kind of value.

use std::io::{self, Write};

use nvlist::{NvList, Uniqueness, Value};

use super::text::packed_len;
use super::text::quotient;

/// The parts of a configuration, each kind of value in a list of its own.
struct Stats {
    strings: NvList,
    numbers: NvList,
    flags: NvList,
    lists: usize,
    leaves: usize,
    leaf_bytes: usize,
    largest_leaf: usize,
}

/// Prints the statistics of `config`, for which there are `room` bytes.
pub(super) fn print(out: &mut dyn Write, config: &NvList, room: usize, verbosity: u32) -> io::Result<()> {
    let none = || NvList::with_flags(Uniqueness::None);
    let empty = packed_len(&none());
    let total = packed_len(config);
    let percent = |n: usize, width, decimals| quotient(100.0 * n as f64, total as f64, width, decimals);
    let used = quotient(100.0 * total as f64, room as f64, 4, 1);
    writeln!(out, "\n\nZFS Label NVList Config Stats:")?;
    writeln!(out, "  {total} bytes used, {} bytes free (using {used}%)\n", room.saturating_sub(total))?;
    let mut stats =
        Stats { strings: none(), numbers: none(), flags: none(), lists: 0, leaves: 0, leaf_bytes: 0, largest_leaf: 0 };
    stats.collect(config, out)?;
    let mut rest = total;
    for (name, list) in [("integers:", &stats.numbers), ("strings:", &stats.strings), ("booleans:", &stats.flags)] {
        let size = packed_len(list).saturating_sub(empty);
        rest = rest.saturating_sub(size);
        writeln!(out, "{name:>12} {:4} {size:6} bytes ({}%)", list.len(), percent(size, 5, 2))?;
    }
    writeln!(out, "{:>12} {:4} {rest:6} bytes ({}%)\n", "nvlists:", stats.lists, percent(rest, 5, 2))?;
    if let Some(average) = stats.leaf_bytes.checked_div(stats.leaves) {
        writeln!(out, "{:>12} {:4} {average:6} bytes average", "leaf vdevs:", stats.leaves)?;
        writeln!(out, "{:24} bytes largest", stats.largest_leaf)?;
        if let (true, Some(more)) = (verbosity >= 3, room.saturating_sub(total).checked_div(average)) {
            writeln!(out, "  space for {more} additional leaf vdevs")?;
        }
    }
    writeln!(out)
}

impl Stats {
    fn collect(&mut self, list: &NvList, out: &mut dyn Write) -> io::Result<()> {
        self.lists += 1;
        for (name, value) in list.iter_bytes() {
            match value {
                Value::String(_) => self.strings.insert(name, value.clone()),
                Value::Uint64(_) => self.numbers.insert(name, value.clone()),
                Value::Boolean => self.flags.insert(name, value.clone()),
                Value::NvList(inner) => self.collect(inner, out)?,
                Value::NvListArray(lists) => {
                    for inner in lists {
                        self.collect(inner, out)?;
                        if name == b"children" {
                            let size = packed_len(inner);
                            self.leaves += 1;
                            self.leaf_bytes += size;
                            self.largest_leaf = self.largest_leaf.max(size);
                        }
                    }
                }
                other => writeln!(out, "skip type {}!", other.data_type() as u8)?,
            }
        }
        Ok(())
    }
}
