//! `zuse stat`.

use std::io::{self, Write};

use zpl::{Kind, Node};
use zuse::{Target, TargetObject};

use super::format;
use super::session::{Session, targets};
use crate::args::Parsed;
use crate::error::{Failure, Outcome};

pub(super) fn run(parsed: &Parsed) -> Outcome {
    let mut session = Session::new(parsed)?;
    let mut out = crate::pools::stdout();
    let mut status = 0;
    for target in targets(parsed)? {
        match session.find(&target) {
            Ok(TargetObject::File(node)) => stat(&mut out, &target, &node)?,
            Ok(TargetObject::Volume(volume)) => {
                writeln!(out, "  Volume: {target}\n    Size: {}\tBlock: {}", volume.size(), volume.block_size())?;
            }
            Ok(TargetObject::Control(_)) => writeln!(out, "    File: {target}\tcontrol directory")?,
            Err(Failure::Failed(message)) => {
                eprintln!("zuse stat: {message}");
                status = 1;
            }
            Err(other) => return Err(other),
        }
    }
    out.flush()?;
    Ok(status)
}

fn stat(out: &mut dyn Write, target: &Target, node: &Node) -> io::Result<()> {
    let attrs = node.attrs();
    let kind = match node.kind() {
        Kind::File => "regular file",
        Kind::Directory => "directory",
        Kind::Symlink => "symbolic link",
        Kind::CharDevice => "character special file",
        Kind::BlockDevice => "block special file",
        Kind::Fifo => "fifo",
        Kind::Socket => "socket",
        Kind::Other(_) => "unknown",
    };
    write!(out, "    File: {target}")?;
    match node.target() {
        Ok(to) if node.kind() == Kind::Symlink => writeln!(out, " -> {}", crate::shown::name(&to))?,
        _ => writeln!(out)?,
    }
    let (size, blocks, block) = (node.size(), node.blocks(), node.block_size());
    writeln!(out, "    Size: {size}\tBlocks: {blocks}\tIO Block: {block}\t{kind}")?;
    write!(out, "  Object: {}\tInode: {}\tLinks: {}", node.id(), node.inode(), attrs.links)?;
    match attrs.device() {
        Some((major, minor)) => writeln!(out, "\tDevice type: {major},{minor}")?,
        None => writeln!(out)?,
    }
    let (octal, text) = (attrs.mode & 0o7777, format::mode(node));
    writeln!(out, "  Access: ({octal:04o}/{text})\tUid: {}\tGid: {}", attrs.uid(), attrs.gid())?;
    for (name, time) in
        [("Access", attrs.atime), ("Modify", attrs.mtime), ("Change", attrs.ctime), (" Birth", attrs.crtime)]
    {
        writeln!(out, "  {name}: {}", format::time(time, true))?;
    }
    if let Some(id) = attrs.projid {
        writeln!(out, " Project: {id}")?;
    }
    writeln!(out, "   Flags: {:#x}\tGeneration: {}\tParent: {}", attrs.flags.0, attrs.generation, attrs.parent)?;
    match node.xattrs() {
        Ok(xattrs) => {
            for (name, value) in xattrs {
                writeln!(out, "   Xattr: {} = {}", crate::shown::name(&name), crate::shown::name(&value))?;
            }
        }
        Err(why) => writeln!(out, "   Xattr: {why}")?,
    }
    match node.acl() {
        Ok(acl) => writeln!(out, "     ACL: {}", show(node, &acl)),
        Err(why) => writeln!(out, "     ACL: {why}"),
    }
}

/// The ACL, one entry per line under the first.
fn show(node: &Node, acl: &zpl::Acl) -> String {
    match node.fs().fuids() {
        Ok(fuids) => acl.show(fuids).trim_end().replace('\n', "\n          "),
        Err(why) => why.to_string(),
    }
}
