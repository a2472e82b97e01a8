//! `zuse ls`.

use std::io::{self, BufWriter, Write};

use zpl::{DirEntry, Kind, Node};
use zuse::entry::{self, Options};
use zuse::{Go, Step, Target, TargetObject, base_name, sort, walk};

use super::flags::{JSON, SHA256};
use super::format;
use super::session::{Session, targets};
use crate::args::Parsed;
use crate::console::Out;
use crate::error::{Failure, Outcome};
use crate::pools::stdout;
use crate::shown;

struct Ls {
    out: BufWriter<Out>,
    long: bool,
    recursive: bool,
    json: bool,
    options: Options,
    status: u8,
}

pub(super) fn run(parsed: &Parsed) -> Outcome {
    let mut session = Session::new(parsed)?;
    let targets = targets(parsed)?;
    let mut ls = Ls {
        out: stdout(),
        long: parsed.has('l'),
        recursive: parsed.has('R'),
        json: parsed.has(JSON) || parsed.has('j'),
        options: Options { sha256: parsed.has(SHA256) },
        status: 0,
    };
    let many = targets.len() > 1;
    for target in &targets {
        match session.find(target) {
            Ok(TargetObject::File(node)) if ls.json => ls.json(target, *node)?,
            Ok(TargetObject::File(node)) => ls.human(target, *node, many)?,
            Ok(TargetObject::Volume(volume)) => {
                writeln!(ls.out, "{}\tvolume of {} bytes", target.dataset, volume.size())?
            }
            Ok(TargetObject::Control(control)) => {
                control.names().iter().try_for_each(|name| writeln!(ls.out, "{name}"))?
            }
            Err(Failure::Failed(message)) => ls.trouble(&message),
            Err(other) => return Err(other),
        }
    }
    ls.out.flush()?;
    Ok(ls.status)
}

impl Ls {
    fn trouble(&mut self, message: &str) {
        let _ = self.out.flush();
        eprintln!("zuse ls: {message}");
        self.status = 1;
    }

    /// Prints one object per line: the file, and with -R all below it; for a directory without -R its entries.
    fn json(&mut self, target: &Target, start: Node) -> io::Result<()> {
        let base = target.path().to_vec();
        let (recursive, options) = (self.recursive, self.options);
        walk(start, true, &mut |step| {
            match step {
                Step::Enter { path, node } => {
                    let full = join(&base, path);
                    let line = entry::line(&target.dataset, &full, node, options);
                    if line.get("read_error").is_some() {
                        self.status = 1;
                    }
                    writeln!(self.out, "{}", shown::json(&line.to_string()))?;
                    if !path.is_empty() && !recursive {
                        return Ok(Go::Over);
                    }
                }
                Step::Leave { .. } => {}
                Step::Lost { path, why } => self.trouble(&format!("{target}: {}: {why}", crate::shown::name(path))),
                Step::Refused { path, why } => self.trouble(&format!("{target}: {}: {why}", crate::shown::name(path))),
            }
            Ok(Go::In)
        })
    }

    /// Prints as `ls` does: a directory's entries; with -R one paragraph per directory.
    fn human(&mut self, target: &Target, start: Node, many: bool) -> io::Result<()> {
        if start.kind() != Kind::Directory {
            return self.list(&[(base_name(target), start)]);
        }
        let mut first = true;
        let (recursive, heads) = (self.recursive, self.recursive || many);
        walk(start, true, &mut |step| {
            match step {
                Step::Enter { path, node } if node.kind() == Kind::Directory => {
                    if heads {
                        let gap = if first { "" } else { "\n" };
                        let place = Target { path: Some(join(target.path(), path)), ..target.clone() };
                        writeln!(self.out, "{gap}{place}:")?;
                    }
                    first = false;
                    self.directory(target, node)?;
                    if !recursive {
                        return Ok(Go::Over);
                    }
                }
                Step::Refused { path, why } => self.trouble(&format!("{target}: {}: {why}", crate::shown::name(path))),
                // files, and what cannot be read, were listed with their directory
                _ => {}
            }
            Ok(Go::In)
        })
    }

    fn directory(&mut self, target: &Target, dir: &Node) -> io::Result<()> {
        let entries = match dir.fs().read_dir(dir.id()) {
            Ok(entries) => sort(entries),
            Err(why) => {
                self.trouble(&format!("{target}: {why}"));
                return Ok(());
            }
        };
        let mut nodes = Vec::new();
        for entry in entries {
            let found: Result<(DirEntry, Option<Node>), _> = entry.and_then(|e| {
                let node = if self.long { Some(dir.fs().node(e.object)?) } else { None };
                Ok((e, node))
            });
            match found {
                Ok((entry, Some(node))) => nodes.push((entry.name, node)),
                Ok((entry, None)) => writeln!(self.out, "{}", crate::shown::name(&entry.name))?,
                Err(why) => self.trouble(&format!("{target}: {why}")),
            }
        }
        self.list(&nodes)
    }

    fn list(&mut self, nodes: &[(Vec<u8>, Node)]) -> io::Result<()> {
        if !self.long {
            return nodes.iter().try_for_each(|(name, _)| writeln!(self.out, "{}", crate::shown::name(name)));
        }
        let size = |node: &Node| match node.attrs().device() {
            Some((major, minor)) => format!("{major}, {minor}"),
            None => node.size().to_string(),
        };
        let width = |f: &dyn Fn(&Node) -> String| nodes.iter().map(|(_, n)| f(n).len()).max().unwrap_or(0);
        let links = width(&|n| n.attrs().links.to_string());
        let (uid, gid) = (width(&|n| n.attrs().uid().to_string()), width(&|n| n.attrs().gid().to_string()));
        let sizes = width(&size);
        let modes: Vec<String> = nodes.iter().map(|(_, node)| format::mode_and_list(node)).collect();
        let mode_width = modes.iter().map(String::len).max().unwrap_or(0);
        for ((name, node), mode) in nodes.iter().zip(modes) {
            let attrs = node.attrs();
            write!(
                self.out,
                "{mode:<mode_width$} {:>links$} {:>uid$} {:>gid$} {:>sizes$} {} {}",
                attrs.links,
                attrs.uid(),
                attrs.gid(),
                size(node),
                format::time(attrs.mtime, false),
                crate::shown::name(name)
            )?;
            match node.target() {
                Ok(target) if node.kind() == Kind::Symlink => {
                    writeln!(self.out, " -> {}", crate::shown::name(&target))?
                }
                _ => writeln!(self.out)?,
            }
        }
        Ok(())
    }
}

fn join(base: &[u8], path: &[u8]) -> Vec<u8> {
    match (base, path) {
        (b"", path) => path.to_vec(),
        (base, b"") => base.to_vec(),
        (base, path) => [base, b"/", path].concat(),
    }
}
