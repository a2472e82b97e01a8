//! Long options that several verbs have.

use crate::args;

/// `--sha256`.
pub(super) const SHA256: char = '\u{e010}';
/// `--json`.
pub(super) const JSON: char = '\u{e011}';
/// `--datasets`.
pub(super) const DATASETS: char = '\u{e012}';
/// `--with-log`.
pub(super) const WITH_LOG: char = '\u{e013}';
/// `--rewind-to-checkpoint`.
pub(super) const CHECKPOINT: char = args::REWIND_TO_CHECKPOINT;
/// `--delegation`.
pub(super) const DELEGATION: char = '\u{e014}';
/// `--no-mounts`.
pub(super) const NO_MOUNTS: char = '\u{e018}';
/// `--on-demand`.
pub(super) const ON_DEMAND: char = '\u{e016}';
/// `--stop`.
pub(super) const STOP: char = '\u{e017}';
/// `--nbd`.
pub(super) const NBD_AT: char = '\u{e019}';
/// `--zvol`.
pub(super) const ZVOL: char = '\u{e01a}';
/// `--tls`.
pub(super) const TLS: char = '\u{e01b}';
/// `--tls-certificates`.
pub(super) const TLS_CERTIFICATES: char = '\u{e01c}';
/// `--tls-verify-peer`.
pub(super) const TLS_VERIFY_PEER: char = '\u{e01d}';
/// `--kstat`, with a value.
pub(super) const KSTAT: char = '\u{e020}';
/// `--metrics`, with a value.
pub(super) const METRICS: char = '\u{e021}';
