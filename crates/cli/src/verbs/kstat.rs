//! `zuse kstat`.

use std::io::Write;

use nvlist::NvList;
use pool::dbgmsg::DebugMessage;
use pool::{Kstat, KstatData};

use super::session::Session;
use crate::args::Parsed;
use crate::console::here;
use crate::error::{Outcome, failed};
use crate::pools::stdout;

pub(super) fn run(parsed: &Parsed) -> Outcome {
    let mut session = Session::new(parsed)?;
    let mut names = parsed.names();
    if names.is_empty() {
        names = here().all()?.into_iter().map(|pool| pool.name).collect();
    }
    if names.is_empty() {
        return Err(failed("no pools available"));
    }
    let mut pools = NvList::new();
    let mut out = stdout();
    for name in &names {
        let pool = session.pool(name)?;
        let kstats = pool.kstats().map_err(|e| failed(format!("cannot read '{name}': {e}")))?;
        if parsed.has('j') {
            pools.insert(pool.name(), list(&kstats));
            continue;
        }
        for kstat in &kstats {
            writeln!(out, "{}/{} (pool {})\n{kstat}", kstat.module, kstat.name, pool.name())?;
        }
    }
    if parsed.has('j') {
        writeln!(out, "{}", pools.to_json())?;
    }
    out.flush()?;
    Ok(0)
}

/// The kstats of a pool by name.
fn list(kstats: &[Kstat]) -> NvList {
    let mut all = NvList::new();
    for kstat in kstats {
        match &kstat.data {
            KstatData::Named(figures) => all.insert(kstat.name, named(figures.iter().copied())),
            KstatData::Messages(messages) => {
                let line = |message: &DebugMessage| {
                    let mut list = NvList::new();
                    list.insert("timestamp", message.time);
                    list.insert("message", message.text.as_str());
                    list
                };
                all.insert(kstat.name, messages.iter().map(line).collect::<Vec<NvList>>());
            }
            KstatData::Table { columns, rows } => {
                let row = |row: &Vec<u64>| named(columns.iter().copied().zip(row.iter().copied()));
                all.insert(kstat.name, rows.iter().map(row).collect::<Vec<NvList>>());
            }
        }
    }
    all
}

fn named(figures: impl Iterator<Item = (&'static str, u64)>) -> NvList {
    let mut list = NvList::new();
    list.extend(figures);
    list
}
