//! The command `version` of the tools.

use nvlist::NvList;

use crate::command::{self, Call};
use crate::error::{Failure, Outcome};
use crate::json;

/// The command `version`.
pub(crate) fn run(call: &Call<'_>) -> Outcome {
    if !call.args.operands.is_empty() {
        return Err(Failure::Usage("too many arguments".to_owned()));
    }
    if !call.args.has('j') {
        return Ok(command::version());
    }
    let mut versions = NvList::new();
    versions.insert("userland", command::version_text());
    let mut schema = json::schema(call);
    schema.insert("zfs_version", versions);
    json::print(&schema)
}
