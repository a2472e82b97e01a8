//! Datasets that are destroyed one after the other, and the checks before that.

use base::Errno;
use control::Ioc;
use nvlist::NvList;
use pool::Kind;

use super::dependents;
use super::listed::Listed;
use super::mounting::{self, Facts};
use super::session::Session;
use super::words::{self, standard};
use crate::command::Call;
use crate::error::{Failure, Outcome, failed, usage};
use crate::names::pool_of;
use crate::pools;

/// The options of the command.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options {
    pub(super) verbose: bool,
    pub(super) parsable: bool,
    pub(super) dry_run: bool,
    pub(super) defer: bool,
    pub(super) recurse: bool,
    pub(super) clones: bool,
    /// What is in use is unmounted by force.
    pub(super) force: bool,
}

/// Destroys datasets in order; consecutive snapshots are destroyed together.
pub(super) struct Destroyer<'a> {
    session: &'a Session,
    options: Options,
    batch: NvList,
    errors: bool,
}

impl<'a> Destroyer<'a> {
    pub(super) fn new(session: &'a Session, options: Options) -> Destroyer<'a> {
        Destroyer { session, options, batch: NvList::new(), errors: false }
    }

    /// Adds the next dataset.
    pub(super) fn add(&mut self, dataset: &Listed) -> Result<(), Failure> {
        let name = dataset.name();
        if self.options.verbose {
            tell(name, self.options);
        }
        if self.options.dry_run || !name.contains(['/', '@']) {
            return Ok(());
        }
        if dataset.is_snapshot() {
            self.batch.insert(name, ());
            return Ok(());
        }
        match self.flush().and_then(|()| self.destroy(name)) {
            // the rest may be destroyed nevertheless
            Err(Failure::Failed(why)) if self.options.recurse => {
                if !why.is_empty() {
                    eprintln!("{why}");
                }
                self.errors = true;
                Ok(())
            }
            other => other,
        }
    }

    fn destroy(&self, name: &str) -> Result<(), Failure> {
        let mounted = mounting::unmount_doomed(name, self.options.force)?;
        match self.session.requests(name)?.call(Ioc::Destroy, name, &NvList::new()) {
            Err(e) if e.errno != Errno::ENOENT => Err(failed(format!("cannot destroy '{name}': {}", standard(&e)))),
            _ => {
                mounted.iter().for_each(Facts::remove_point);
                Ok(())
            }
        }
    }

    fn flush(&mut self) -> Result<(), Failure> {
        let batch = std::mem::take(&mut self.batch);
        destroy_snapshots(self.session, batch, false)
    }

    /// Destroys the pending snapshots; returns the exit status.
    pub(super) fn finish(mut self) -> Outcome {
        self.flush()?;
        Ok(u8::from(self.errors))
    }
}

/// Returns whether nothing depends on `target`; otherwise prints what does.
pub(super) fn check(target: &Listed, kind: Kind, all: &[Listed], recurse: bool) -> bool {
    let name = target.name();
    let mut good = true;
    for dataset in all {
        let inside = dependents::is_within(dataset.name(), name);
        // clones matter if the snapshots are destroyed with it
        if inside == recurse && (inside || kind != Kind::Snapshot) {
            continue;
        }
        if good {
            let (what, flag) = if inside { ("children", 'r') } else { ("dependent clones", 'R') };
            eprintln!(
                "cannot destroy '{name}': {} has {what}\nuse '-{flag}' to destroy the following datasets:",
                kind.as_str()
            );
            good = false;
        }
        eprintln!("{}", dataset.name());
    }
    good
}

/// Prints that a dataset is destroyed.
pub(super) fn tell(name: &str, options: Options) {
    match (options.parsable, options.dry_run) {
        (true, _) => println!("destroy\t{name}"),
        (false, true) => println!("would destroy {name}"),
        (false, false) => println!("will destroy {name}"),
    }
}

/// Destroys snapshots of one pool together; prints for each that could not be destroyed why (OpenZFS:
/// `zfs_destroy_snaps_nvl`).
pub(super) fn destroy_snapshots(session: &Session, snaps: NvList, defer: bool) -> Result<(), Failure> {
    let Some(first) = snaps.iter().next().map(|(name, _)| name.to_owned()) else { return Ok(()) };
    let mut input = NvList::new();
    input.insert("snaps", snaps);
    if defer {
        input.insert("defer", ());
    }
    let Err(e) = session.requests(&first)?.call(Ioc::DestroySnaps, pool_of(&first), &input) else { return Ok(()) };
    if e.out.is_empty() {
        return Err(failed(format!("cannot destroy snapshots: {}", standard(&e))));
    }
    for (name, value) in &*e.out {
        let number = match value {
            nvlist::Value::Int32(n) => Errno::from_raw(*n),
            _ => e.errno,
        };
        let why = match number {
            Errno::EEXIST => "snapshot is cloned".to_owned(),
            Errno::EBUSY if is_held(name) => {
                format!("it's being held. Run 'zfs holds -r {name}' to see holders.")
            }
            n => words::of_errno(n),
        };
        eprintln!("cannot destroy snapshot {name}: {why}");
    }
    Err(failed(""))
}

fn is_held(name: &str) -> bool {
    let source = pools::of_dataset(name).ok().flatten();
    source.is_some_and(|source| Listed::named(&source, name.to_owned()).is("userrefs").unwrap_or(false))
}

/// The single operand of a command that takes one dataset.
pub(super) fn only_operand(call: &Call<'_>) -> Result<String, Failure> {
    let mut operands = call.args.names();
    match (operands.pop(), operands.is_empty()) {
        (None, _) => Err(usage("missing dataset argument")),
        (Some(name), true) => Ok(name),
        (Some(_), false) => Err(usage("too many arguments")),
    }
}
