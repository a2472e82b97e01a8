//! OpenZFS's messages for a stream that was not received (`zfs_receive_one`, `recv_ecksum_set_aux`).

use control::Failed;

use crate::error::{Failure, failed};
use crate::zfs::words::{errno, standard};

const ENODEV: i32 = 19;
const ETXTBSY: i32 = 26;
// OpenZFS's own error numbers
const LARGE_BLOCK_MISMATCH: i32 = 1041;
const SPILL_FLAG_MISSING: i32 = 1036;
const RESUME_EXISTS: i32 = 1047;
const CRYPTO_NOTSUP: i32 = 1048;
const TRUNCATED: i32 = 1040;
const IVSET_MISSING: i32 = 1034;
const IVSET_MISMATCH: i32 = 1035;

/// The receive that was tried.
pub(super) struct Tried<'a> {
    /// The beginning of the message: `cannot receive incremental stream`.
    pub(super) doing: &'a str,
    /// The snapshot to be created.
    pub(super) target: &'a str,
    pub(super) raw: bool,
    /// The stream creates a dataset.
    pub(super) new_fs: bool,
    pub(super) resumable: bool,
    /// The dataset holds the state of an interrupted receive.
    pub(super) has_token: bool,
}

pub(super) fn words(e: &Failed, tried: &Tried<'_>) -> Failure {
    let fs = tried.target.split('@').next().unwrap_or("");
    let doing = tried.doing;
    let bad_stream = |why: String| format!("{doing}: {why}");
    failed(match e.errno {
        ENODEV => format!("{doing}: most recent snapshot of {fs} does not\nmatch incremental source"),
        ETXTBSY => format!("{doing}: destination {fs} has been modified\nsince most recent snapshot"),
        errno::EACCES => {
            let why = match (tried.raw, tried.new_fs) {
                (true, true) => "failed to create encryption key",
                (true, false) => "encryption key does not match existing key",
                (false, _) => "inherited key must be loaded",
            };
            format!("{doing}: {why}")
        }
        errno::EEXIST => {
            let what = if tried.new_fs { fs } else { tried.target };
            format!("cannot restore to {what}: destination already exists")
        }
        RESUME_EXISTS => {
            let what = if tried.new_fs { fs } else { tried.target };
            format!("cannot resume recv {what}: Resuming recv on existing dataset without force")
        }
        errno::EINVAL | errno::ERANGE => bad_stream(format!("invalid backup stream ({})", e.error)),
        errno::EBADE | TRUNCATED => bad_stream(broken(e, tried)),
        LARGE_BLOCK_MISMATCH => {
            bad_stream("incremental send stream requires -L (--large-block), to match previous receive.".to_owned())
        }
        errno::ENOTSUP => format!("{doing}: pool must be upgraded to receive this stream."),
        CRYPTO_NOTSUP => bad_stream("stream uses crypto parameters not compatible with this pool".to_owned()),
        errno::EDQUOT => format!("{doing}: destination {fs} space quota exceeded."),
        IVSET_MISSING => bad_stream(
            "IV set guid missing. See errata 4 at https://openzfs.github.io/openzfs-docs/msg/ZFS-8000-ER.".to_owned(),
        ),
        IVSET_MISMATCH => bad_stream(
            "IV set guid mismatch. The incremental source snapshot on the\ndestination no longer has the IV set it was sent \
             with, most commonly\nbecause it was received as a non-raw (plain) stream. Raw replication\ncan be resumed by \
             rolling the destination back to the most recent\nsnapshot that was received raw and taking the raw \
             incremental from\nthere, or by receiving a new full raw (zfs send -w) stream. See the\n'zfs receive' man \
             page section discussing the limitations of raw\nencrypted send streams."
                .to_owned(),
        ),
        SPILL_FLAG_MISSING => bad_stream(
            "Spill block flag missing for raw send.\nThe zfs software on the sending system must be updated."
                .to_owned(),
        ),
        errno::EBUSY if tried.has_token => {
            format!("{doing}: destination {fs} contains partially-complete state from \"zfs receive -s\".")
        }
        _ => format!("{doing}: {}", standard(e)),
    })
}

/// The message for a stream that ended too early, or was corrupted on its way. The part before may be kept.
fn broken(e: &Failed, tried: &Tried<'_>) -> String {
    let fs = tried.target.split('@').next().unwrap_or("");
    let token = tried
        .resumable
        .then(|| crate::pools::of_dataset(fs).ok()??.dataset(fs).ok()?.receive_resume_token().ok()?)
        .flatten();
    match token {
        Some(token) => format!(
            "checksum mismatch or incomplete stream.\nPartially received snapshot is saved.\nA resuming stream can be \
             generated on the sending system by running:\n    zfs send -t {token}"
        ),
        None if e.errno == TRUNCATED => format!("incomplete stream ({})", e.error),
        None => format!("checksum mismatch ({})", e.error),
    }
}
