/// Reasons why a log, or the data of one of its records, could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A block that should exist cannot be read.
    #[error(transparent)]
    Zio(#[from] zio::Error),
    /// A record does not have the form that its type requires.
    #[error("intent log of dataset {objset}, record {seq}: {source}")]
    Record {
        /// The dataset's object number.
        objset: u64,
        /// The record's sequence number.
        seq: u64,
        /// The decoding error.
        source: ondisk::Error,
    },
    /// An object cannot be read or changed.
    #[error(transparent)]
    Dmu(#[from] dmu::Error),
    /// The pool refused the operation: it is suspended or closed, or has no space. Holds the pool's own error.
    #[error("{0}")]
    Pool(Box<dyn std::error::Error + Send + Sync>),
    /// The log cannot be written now.
    #[error("intent log of dataset {objset}: {what}")]
    Unusable {
        /// The dataset's object number.
        objset: u64,
        /// The reason.
        what: &'static str,
    },
    /// The listing of a log could not be written out.
    #[error("writing: {0}")]
    Write(#[from] std::io::Error),
}
