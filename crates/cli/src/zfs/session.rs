//! The pools that one command changes.

use std::cell::RefCell;

use control::{Control, Failed, Ioc};
use nvlist::NvList;

use super::listed::Listed;
use super::select;
use crate::console::{self, here};
use crate::error::{Failure, Outcome, failed};
use crate::names::{self, Types, pool_of};
use crate::progress::bar;
use crate::{answers, messages, replay, writable};

/// Pools open for a change, each from its first use to the end of the command.
#[derive(Debug, Default)]
pub(super) struct Session {
    open: RefCell<Vec<Control>>,
}

/// The destination of requests to a pool.
pub(super) enum Requests {
    /// The pool, which is open for a change.
    To(Control),
    /// None: the pool was imported read-only.
    ReadOnly,
}

impl Requests {
    /// As [`Control::call`].
    pub(super) fn call(&self, ioc: Ioc, name: &str, input: &NvList) -> Result<NvList, Failed> {
        match self {
            Requests::To(control) => control.call(ioc, name, input),
            Requests::ReadOnly => Err(control::Error::ReadOnly.into()),
        }
    }
}

impl Session {
    /// Runs the part of a command that changes pools, and closes them. If all succeeded, the command line is written
    /// to their history.
    pub(super) fn run(work: impl FnOnce(&Session) -> Outcome) -> Outcome {
        let session = Session::default();
        let outcome = work(&session);
        let closed = session.close(matches!(outcome, Ok(0)));
        match (outcome, closed) {
            (Ok(status), Err(failure)) => {
                crate::command::report(&failure);
                Ok(status.max(1))
            }
            (outcome, _) => outcome,
        }
    }

    /// The pool that `dataset` is in, open for a change; `None` if it is not imported. From now on lookups see the
    /// changes made to it.
    pub(super) fn find(&self, dataset: &str) -> Result<Option<Control>, Failure> {
        let name = pool_of(dataset);
        if let Some(control) = self.open.borrow().iter().find(|control| control.spa().name() == name) {
            return Ok(Some(control.clone()));
        }
        let Some(record) = here().find(name)? else { return Ok(None) };
        let spa = writable::open(&record, &format!("cannot open '{name}'"))?;
        let control = console::control(spa);
        self.open.borrow_mut().push(control.clone());
        here().show_changes(&record, control.spa())?;
        // a machine has replayed them when it lent the pool
        if control.spa().had_logs() && !here().is_of_machine() {
            // after a command that was killed
            replay::all(control.spa())?;
            control.spa().sync().map_err(|e| failed(format!("cannot open '{name}': {}", messages::why(&e))))?;
        }
        Ok(Some(control))
    }

    /// As [`Session::find`], for a dataset that must exist.
    pub(super) fn control(&self, dataset: &str) -> Result<Control, Failure> {
        self.find(dataset)?.ok_or_else(|| failed(format!("cannot open '{dataset}': dataset does not exist")))
    }

    /// As [`Session::find`], but a read-only pool is found too: errors in a request are reported before that.
    pub(super) fn reach(&self, dataset: &str) -> Result<Option<Requests>, Failure> {
        let name = pool_of(dataset);
        match here().find(name)? {
            Some(record) if record.readonly => Ok(Some(Requests::ReadOnly)),
            _ => Ok(self.find(dataset)?.map(Requests::To)),
        }
    }

    /// As [`Session::reach`], for a dataset that must exist.
    pub(super) fn requests(&self, dataset: &str) -> Result<Requests, Failure> {
        self.reach(dataset)?.ok_or_else(|| failed(format!("cannot open '{dataset}': dataset does not exist")))
    }

    /// Finds a dataset of one of these kinds that the command is to change.
    pub(super) fn dataset(&self, name: &str, types: Types) -> Result<Listed, Failure> {
        if names::check(name, types).is_ok() {
            self.reach(name)?;
        }
        select::find(name, types)
    }

    /// Waits until destroyed datasets are freed, as nothing would free them between commands; on a terminal a bar
    /// shows the progress. If the user interrupts it, the rest is left to the next command that changes the pool.
    pub(super) fn wait_freed(&self) -> Result<(), Failure> {
        self.open.borrow().iter().try_for_each(|control| {
            let cannot = |e: Failed| {
                let name = control.spa().name();
                failed(format!("cannot free space in '{name}': {}", messages::why_failed(&e)))
            };
            free_all(control).map_err(cannot)
        })
    }

    fn close(&self, good: bool) -> Result<(), Failure> {
        let mut result = Ok(());
        for control in self.open.borrow_mut().drain(..) {
            let spa = control.spa();
            result = result.and(spa.view().map_or(Ok(()), |view| Ok(site::keys::settle(&view)?)));
            here().hide_changes(spa);
            let logs = good && control.has_changed();
            let closed = if logs { writable::log_and_close(spa) } else { here().close(spa) };
            let closed = closed.map_err(|e| failed(format!("cannot close '{}': {}", spa.name(), messages::why(&e))));
            result = result.and(closed);
        }
        result
    }
}

fn free_all(control: &Control) -> Result<(), Failed> {
    let spa = control.spa();
    let mut input = NvList::new();
    input.insert("get_props_names", answers::names(["freeing"]));
    let freeing = || -> Result<u64, Failed> {
        let props = control.call(Ioc::PoolGetProps, spa.name(), &input)?;
        Ok(props.get_nvlist("freeing").and_then(|prop| prop.get_u64("value")).unwrap_or(0))
    };
    if !spa.is_freeing() {
        return Ok(());
    }
    let total = freeing()?;
    let bar = bar(total, false);
    bar.set_message(format!("freeing in {}", spa.name()));
    while spa.is_freeing() {
        spa.sync()?;
        bar.set_position(total.saturating_sub(freeing()?));
    }
    bar.finish_and_clear();
    Ok(())
}
