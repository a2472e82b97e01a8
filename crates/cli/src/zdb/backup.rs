//! `-B POOL/OBJSET [FLAGS]`: a send stream of an object set, given by its number, of a pool that need not be imported.

use std::io::Write;
use std::sync::Arc;

use base::{Errno, ObjectId};
use pool::Pool;
use stream::send::{Progress, SendFlags, send};

use super::options::number;
use crate::console;
use crate::error::{Outcome, cause};

/// Writes the stream. Unlike zdb, an incomplete stream ends with a status other than 0.
pub(super) fn run(out: &mut dyn Write, pool: &Arc<Pool>, target: &str, letters: &str) -> Outcome {
    let mut flags = SendFlags::default();
    for letter in letters.chars() {
        match letter {
            'e' => flags.embed = true,
            'L' => flags.large_block = true,
            'c' => flags.compress = true,
            'w' => flags.raw = true,
            other => {
                eprintln!("dump_backup: invalid flag '{other}'");
                return Ok(1);
            }
        }
    }
    if console::stdout_is_terminal() {
        eprintln!("dump_backup: stream cannot be written to a terminal");
        return Ok(1);
    }
    let id = target.split_once('/').and_then(|(_, id)| number(id)).map_or(ObjectId::NONE, ObjectId);
    let sent = match pool.dataset_by_id(id) {
        Ok(dataset) => send(&dataset, None, &flags, out, &Progress::default()).map_err(|e| e.errno()),
        // a number that cannot be a dataset's
        Err(_) => Err(Errno::ENOENT),
    };
    Ok(match sent {
        Ok(()) => 0,
        Err(errno) => {
            eprintln!("dump_backup: dmu_send_obj: {}", cause(&std::io::Error::from(errno)));
            1
        }
    })
}
