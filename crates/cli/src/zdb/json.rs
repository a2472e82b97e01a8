//! `-j`: the output as one JSON object in the same shape as the other commands' (`output_version`, then the parts).

use std::sync::Arc;

use nvlist::NvList;
use pool::Pool;

use crate::error::Failure;

use super::options::Options;
use super::text::trouble;
use super::{blocks, metaslabs, objects, read, uberblock};

/// The list that every output begins with.
pub(super) fn schema() -> NvList {
    let mut version = NvList::new();
    version.insert("command", "zdb");
    version.insert("vers_major", 0_u32);
    version.insert("vers_minor", 1_u32);
    let mut schema = NvList::new();
    schema.insert("output_version", version);
    schema
}

/// The parts of `pool` that the options ask for: the list, and the exit status.
pub(super) fn pool(options: &Options, pool: &Arc<Pool>) -> Result<(NvList, u8), Failure> {
    let mut all = schema();
    let mut status = 0;
    all.insert("pool", pool.name());
    let (target, rest) = options.operands.split_first().map_or(("", &[][..]), |(t, rest)| (t.as_str(), rest));
    if options.has('R') {
        let blocks = rest.iter().map(|block| read::list(pool, block)).collect::<Result<Vec<_>, _>>()?;
        status = u8::from(blocks.iter().any(|block| block.contains("error")));
        all.insert("read", blocks);
        return Ok((all, status));
    }
    if options.has('d') || options.has('i') {
        let whole = target == pool.name() && (rest.is_empty() || options.has('m'));
        let (sets, trouble) = if whole {
            objects::json::pool(options, pool)?
        } else {
            let (set, trouble) = objects::json::one(options, pool, target.trim_end_matches('/'), rest)?;
            (vec![set], trouble)
        };
        all.insert("datasets", sets);
        status = trouble;
    }
    if options.has('C') {
        all.insert("config", pool.config().clone());
    }
    if options.has('u') {
        all.insert("uberblock", uberblock::list(pool.uberblock()));
    }
    if options.has('m') {
        all.insert("metaslabs", metaslabs::list(pool)?);
    }
    if options.has('b') || options.has('c') {
        let survey = blocks::survey(options, pool, &mut std::io::sink())?;
        all.insert("blocks", survey.list());
        status = status.max(survey.status());
    }
    if options.has('h') {
        let records = pool.history().map_err(trouble)?;
        all.insert("history", records.into_iter().map(|r| r.list).collect::<Vec<NvList>>());
    }
    Ok((all, status))
}
