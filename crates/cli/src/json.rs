//! JSON output in OpenZFS 2.4's shape: an nvlist that opens with the version of the command's output.

use std::io::Write;

use nvlist::NvList;

use crate::command::Call;
use crate::error::Outcome;
use crate::pools::stdout;
use crate::shown;

/// The list that every output begins with (OpenZFS: `zfs_json_schema(0, 1)`).
pub(crate) fn schema(call: &Call<'_>) -> NvList {
    let mut version = NvList::new();
    version.insert("command", format!("{} {}", call.tool, call.command.name));
    version.insert("vers_major", 0_u32);
    version.insert("vers_minor", 1_u32);
    let mut schema = NvList::new();
    schema.insert("output_version", version);
    schema
}

/// Prints a list as a line.
pub(crate) fn print(list: &NvList) -> Outcome {
    let mut out = stdout();
    writeln!(out, "{}", shown::json(&list.to_json()))?;
    out.flush()?;
    Ok(0)
}
