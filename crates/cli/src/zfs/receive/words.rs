//! OpenZFS's messages for a stream that was not received (`zfs_receive_one`, `recv_ecksum_set_aux`).

use base::Errno;
use control::Failed;

use crate::error::{Failure, failed};
use crate::zfs::words::standard;
// OpenZFS's own error numbers

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
        Errno::ENODEV => format!("{doing}: most recent snapshot of {fs} does not\nmatch incremental source"),
        Errno::ETXTBSY => format!("{doing}: destination {fs} has been modified\nsince most recent snapshot"),
        Errno::EACCES => {
            let why = match (tried.raw, tried.new_fs) {
                (true, true) => "failed to create encryption key",
                (true, false) => "encryption key does not match existing key",
                (false, _) => "inherited key must be loaded",
            };
            format!("{doing}: {why}")
        }
        Errno::EEXIST => {
            let what = if tried.new_fs { fs } else { tried.target };
            format!("cannot restore to {what}: destination already exists")
        }
        Errno::ZFS_ERR_RESUME_EXISTS => {
            let what = if tried.new_fs { fs } else { tried.target };
            format!("cannot resume recv {what}: Resuming recv on existing dataset without force")
        }
        Errno::EINVAL | Errno::ERANGE => bad_stream(format!("invalid backup stream ({})", e.error)),
        Errno::ECKSUM | Errno::ZFS_ERR_STREAM_TRUNCATED => bad_stream(broken(e, tried)),
        Errno::ZFS_ERR_STREAM_LARGE_BLOCK_MISMATCH => {
            bad_stream("incremental send stream requires -L (--large-block), to match previous receive.".to_owned())
        }
        Errno::ENOTSUP => format!("{doing}: pool must be upgraded to receive this stream."),
        Errno::ZFS_ERR_CRYPTO_NOTSUP => bad_stream("stream uses crypto parameters not compatible with this pool".to_owned()),
        Errno::EDQUOT => format!("{doing}: destination {fs} space quota exceeded."),
        Errno::ZFS_ERR_FROM_IVSET_GUID_MISSING => bad_stream(
            "IV set guid missing. See errata 4 at https://openzfs.github.io/openzfs-docs/msg/ZFS-8000-ER.".to_owned(),
        ),
        Errno::ZFS_ERR_FROM_IVSET_GUID_MISMATCH => bad_stream(
            "IV set guid mismatch. The incremental source snapshot on the\ndestination no longer has the IV set it was sent \
             with, most commonly\nbecause it was received as a non-raw (plain) stream. Raw replication\ncan be resumed by \
             rolling the destination back to the most recent\nsnapshot that was received raw and taking the raw \
             incremental from\nthere, or by receiving a new full raw (zfs send -w) stream. See the\n'zfs receive' man \
             page section discussing the limitations of raw\nencrypted send streams."
                .to_owned(),
        ),
        Errno::ZFS_ERR_SPILL_BLOCK_FLAG_MISSING => bad_stream(
            "Spill block flag missing for raw send.\nThe zfs software on the sending system must be updated."
                .to_owned(),
        ),
        Errno::EBUSY if tried.has_token => {
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
        .then(|| {
            let source = crate::pools::of_dataset(fs).ok()??;
            Some(crate::answers::prop(&source, fs, "receive_resume_token").ok()??.to_string())
        })
        .flatten();
    match token {
        Some(token) => format!(
            "checksum mismatch or incomplete stream.\nPartially received snapshot is saved.\nA resuming stream can be \
             generated on the sending system by running:\n    zfs send -t {token}"
        ),
        None if e.errno == Errno::ZFS_ERR_STREAM_TRUNCATED => format!("incomplete stream ({})", e.error),
        None => format!("checksum mismatch ({})", e.error),
    }
}
