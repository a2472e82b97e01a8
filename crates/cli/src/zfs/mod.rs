//! `zfs`.

mod ancestors;
mod bookmark;
mod change_key;
mod clone;
mod create;
mod dependents;
mod destroy;
mod destroy_snaps;
mod destroyer;
mod diff;
mod get;
mod hold;
mod holds;
mod inherit;
mod list;
mod listed;
mod load_key;
mod mount;
mod mount_helper;
mod mounting;
mod new_dataset;
mod progress;
mod receive;
mod rename;
mod rollback;
mod select;
mod send;
mod session;
mod set;
mod snapshot;
mod table;
mod upgrade;
mod userspace;
mod volume;
mod wait;
mod words;

pub(crate) use mount_helper::main as mount_helper;
pub(crate) use mounting::of_pool::{disable, enable, mount_root};
pub(crate) use mounting::snapdir::admin as snapshot_admin;

use std::ffi::OsString;
use std::io::{self, Write};

use pool::prop::DATASET;

use crate::command::Tool;

pub(crate) const TOOL: Tool = Tool {
    name: "zfs",
    groups: table::GROUPS,
    aliases: &[("umount", "unmount"), ("recv", "receive"), ("snap", "snapshot")],
    list_scripts: None,
    epilogue,
};

/// Runs `zfs` with the arguments after its name; the exit status.
pub(crate) fn main(args: &[OsString]) -> u8 {
    TOOL.main(args)
}

/// Prints the table of properties after the usage of commands that take some, else where to find it.
fn epilogue(command: Option<&str>, out: &mut dyn Write) -> io::Result<()> {
    if command.is_none() {
        writeln!(out, "\nEach dataset is of the form: pool/[dataset/]*dataset[@name]")?;
    }
    if matches!(command, Some("load-key" | "unload-key")) {
        write!(
            out,
            "\nA key in a file (keylocation or -L file:///...) is checked, and read again by each later\n\
             command until unload-key; one that is typed is kept by a process of yours until then.\n"
        )?;
    }
    if !matches!(command, Some("set" | "get" | "inherit" | "list")) {
        return write!(
            out,
            "\nFor the property list, run: zfs set|get\n\
             \nFor further help on a command or topic, run: zfs help [<topic>]\n"
        );
    }
    writeln!(out, "\nThe following properties are supported:")?;
    writeln!(out, "\n\tPROPERTY              EDIT  INHERIT   VALUES\n")?;
    for def in DATASET.iter().filter(|def| def.visible) {
        let edit = if def.is_read_only() && !def.is_set_once() { " NO    " } else { "YES    " };
        let inherit = if def.is_inheritable() { "  YES   " } else { "   NO   " };
        let values = if def.values.is_empty() { "-" } else { def.values };
        writeln!(out, "\t{:<22} {edit}{inherit}{values}", def.name)?;
    }
    for what in ["used", "objused", "quota", "objquota"] {
        let (edit, values) = if what.ends_with("used") { (" NO", "<size>") } else { ("YES", "<size> | none") };
        for who in ["user", "group", "project"] {
            writeln!(out, "\t{:<22} {edit}       NO   {values}", format!("{who}{what}@..."))?;
        }
    }
    for name in ["written@<snap>", "written#<bookmark>"] {
        writeln!(out, "\t{name:<22}  NO       NO   <size>")?;
    }
    write!(
        out,
        "\nSizes are specified in bytes with standard units such as K, M, G, etc.\n\
         \nUser-defined properties can be specified by using a name containing a colon (:).\n\
         \nThe {{user|group|project}}[obj]{{used|quota}}@ properties must be appended with\n\
         a user|group|project specifier of one of these forms:\n    \
         POSIX name      (eg: \"matt\")\n    \
         POSIX id        (eg: \"126829\")\n    \
         SMB name@domain (eg: \"matt@sun\")\n    \
         SMB SID         (eg: \"S-1-234-567-89\")\n"
    )
}
