//! `zpool`.

mod activity;
mod add;
mod attach;
mod checkpoint;
mod clear;
mod create;
mod ddtprune;
mod dedup;
mod describe;
mod destroy;
mod events;
mod export;
mod get;
mod history;
mod import;
mod iostat;
mod iostat_table;
mod labelclear;
mod leaf_work;
mod list;
mod newdevs;
mod online;
mod reason;
mod reguid;
mod remove;
mod repeat;
mod scripts;
mod scrub;
mod set;
mod show;
mod status;
mod status_facts;
mod status_json;
mod sync;
mod table;
mod trim;
mod unavailable;
mod upgrade;
mod vdev_json;
mod vdev_props;
mod vdevs;
mod wait;

use std::ffi::OsString;
use std::io::{self, Write};

use pool::prop::POOL;

use crate::command::Tool;

pub(crate) const TOOL: Tool =
    Tool { name: "zpool", groups: table::GROUPS, aliases: &[], list_scripts: Some(scripts::list), epilogue };

/// Runs `zpool` with the arguments after its name; the exit status.
pub(crate) fn main(args: &[OsString]) -> u8 {
    TOOL.main(args)
}

/// Prints the table of properties after the usage of commands that take some, else where to find help.
fn epilogue(command: Option<&str>, out: &mut dyn Write) -> io::Result<()> {
    if command.is_none() {
        return writeln!(out, "\nFor further help on a command or topic, run: zpool help [<topic>]");
    }
    if command == Some("create") {
        writeln!(out, "\n--size makes files that are not there, sparse: 512M, 1.5G.")?;
    }
    if command == Some("import") {
        write!(
            out,
            "\nUntil the export, commands find the pool by what is written below $ZUSE_STATE\n\
             (else $XDG_STATE_HOME/zuse, ~/.local/state/zuse).\n"
        )?;
    }
    if !matches!(command, Some("set" | "get" | "list")) {
        return Ok(());
    }
    writeln!(out, "\nthe following properties are supported:")?;
    writeln!(out, "\n\tPROPERTY             EDIT   VALUES\n")?;
    for def in POOL.iter().filter(|def| def.visible) {
        let edit = if def.is_read_only() { "  NO   " } else { " YES   " };
        let values = if def.values.is_empty() { "-" } else { def.values };
        writeln!(out, "\t{:<19}  {edit}{values}", def.name)?;
    }
    writeln!(out, "\t{:<19}   YES   disabled | enabled | active", "feature@...")?;
    writeln!(out, "\nThe feature@ properties must be appended with a feature name.\nSee zpool-features(7).")
}
